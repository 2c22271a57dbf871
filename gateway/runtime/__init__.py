"""The composition root: settings and folders become a running gateway. The one part that knows every adapter."""
