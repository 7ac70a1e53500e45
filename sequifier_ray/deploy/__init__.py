"""Files and jobs for clusters: what a batch system or an orchestrator needs around the commands."""
