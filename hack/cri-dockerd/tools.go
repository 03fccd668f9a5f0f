//go:build tools

// Package cridockerd pins cri-dockerd, by which a kubelet runs its pods on a Docker Engine: its command, and
// what its main package imports beside that.
package cridockerd

import (
	_ "github.com/Mirantis/cri-dockerd/cmd"
	_ "k8s.io/apiserver/pkg/server"
	_ "k8s.io/component-base/logs"
)
