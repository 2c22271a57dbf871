"""From a project to a served revision: discovery, build, reload and drain."""
