"""A project on Kubernetes: the manifests that the KubeRay operator takes, for a training's own numbers."""
