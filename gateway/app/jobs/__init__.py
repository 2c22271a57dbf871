"""Work in the background: retention, anchors of the decision log, webhooks."""
