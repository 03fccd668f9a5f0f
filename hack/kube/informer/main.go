// Command informer is an informer of client-go, for tests of the embedded API: it prints what it is
// told, and each request that it makes.
//
//	informer -kubeconfig FILE -resource configmaps|pods
//
// It ends when its standard input does, and prints what it knows then.
package main

import (
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"sort"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "the API to ask")
	resource := flag.String("resource", "configmaps", "configmaps or pods")
	_ = flag.CommandLine.Parse(os.Args[1:])

	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		die(err)
	}
	config.Wrap(func(inner http.RoundTripper) http.RoundTripper { return &told{inner} })
	// As built-in controllers speak.
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		die(err)
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace("default"))
	informer := factory.Core().V1().ConfigMaps().Informer()
	if *resource == "pods" {
		informer = factory.Core().V1().Pods().Informer()
	}
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { say("add", name(object)) },
		UpdateFunc: func(_, object any) { say("update", name(object)) },
		DeleteFunc: func(object any) { say("delete", name(object)) },
	})
	if err != nil {
		die(err)
	}
	stop := make(chan struct{})
	factory.Start(stop)
	factory.WaitForCacheSync(stop)
	say("synced")
	_, _ = io.Copy(io.Discard, os.Stdin)
	var known []string
	for _, object := range informer.GetStore().List() {
		known = append(known, name(object))
	}
	sort.Strings(known)
	for _, name := range known {
		say("knows", name)
	}
	close(stop)
}

// told says which requests are made.
type told struct{ inner http.RoundTripper }

func (told *told) RoundTrip(request *http.Request) (*http.Response, error) {
	answer, err := told.inner.RoundTrip(request)
	verb := "list"
	if request.URL.Query().Get("watch") != "" {
		verb = "watch"
	}
	if request.URL.Query().Get("sendInitialEvents") == "true" {
		verb = "watchlist"
	}
	if err == nil {
		say("request", verb, answer.StatusCode)
	}
	return answer, err
}

func name(object any) string {
	if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = gone.Obj
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		die(err)
	}
	return accessor.GetName() + " " + accessor.GetResourceVersion()
}

var saying sync.Mutex

func say(words ...any) {
	saying.Lock()
	defer saying.Unlock()
	fmt.Println(words...)
}

func die(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
