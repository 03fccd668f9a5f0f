//go:build tools

// Package metricsserver pins the metrics-server that the tests run: what `kubectl top` reads from.
package metricsserver

import (
	_ "sigs.k8s.io/metrics-server/cmd/metrics-server/app"
)
