// Command manifests reads manifests as the kubelet does, by the kubelet's own source of files, and
// prints what it makes of each: a line of JSON with the pod, or with the reason for which there is none.
//
//	manifests NODE FILE…
package main

import (
	"encoding/json"
	"os"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/kubelet/config"
	kubetypes "k8s.io/kubernetes/pkg/kubelet/types"
)

// Never reached: a file is read once.
const period = time.Hour

type result struct {
	File  string  `json:"file"`
	Pod   *v1.Pod `json:"pod,omitempty"`
	Error string  `json:"error,omitempty"`
}

func main() {
	if len(os.Args) < 3 {
		os.Stderr.WriteString("usage: manifests NODE FILE…\n")
		os.Exit(2)
	}
	out := json.NewEncoder(os.Stdout)
	for _, file := range os.Args[2:] {
		if err := out.Encode(read(types.NodeName(os.Args[1]), file)); err != nil {
			panic(err)
		}
	}
}

// read waits for a pod of the source, or for the error that it logs.
func read(node types.NodeName, file string) result {
	updates := make(chan interface{}, 1)
	failures := make(chan string, 1)
	config.NewSourceFile(logr.New(sink{funcr.New(func(string, string) {}, funcr.Options{}).GetSink(), failures}), file, node, period, updates)
	select {
	case update := <-updates:
		return result{File: file, Pod: update.(kubetypes.PodUpdate).Pods[0]}
	case failure := <-failures:
		return result{File: file, Error: failure}
	}
}

// sink hands on the error of a file that can't be read.
type sink struct {
	logr.LogSink
	failures chan<- string
}

func (s sink) Error(err error, message string, values ...interface{}) {
	if message != "Unable to read config path" || err == nil {
		return
	}
	select {
	case s.failures <- err.Error():
	default:
	}
}
