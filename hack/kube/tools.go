//go:build tools

// Package kube pins the Kubernetes programs that the tests run against: real servers, built from
// their own modules.
package kube

import (
	_ "k8s.io/kubernetes/cmd/kube-apiserver/app"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	_ "k8s.io/kubernetes/cmd/kube-scheduler/app"
	_ "k8s.io/kubectl/pkg/cmd"
	_ "k8s.io/kubernetes/cmd/kubelet/app"

	// A control plane as static pods (hack/kubeadm.sh).
	_ "go.etcd.io/etcd/server/v3/etcdmain"
	_ "k8s.io/kubernetes/cmd/kubeadm/app"

	// Its own word on a Node (hack/conformance).
	_ "github.com/onsi/ginkgo/v2/ginkgo/command"
	_ "k8s.io/kubernetes/test/e2e"
	_ "k8s.io/kubernetes/test/e2e_node"
	_ "k8s.io/kubernetes/test/images/agnhost/netexec"
)
