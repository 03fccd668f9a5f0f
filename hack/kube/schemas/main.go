// Command schemas writes the schemas of the kinds that the embedded API may serve, out of the Kubernetes
// modules that hack/kube/go.mod pins:
//
//	openapi.txt   per line the name of an OpenAPI v3 schema, a tab, and the schema
//	protobuf.txt  per message its fields: number, name, form
//
// Usage: schemas DIRECTORY
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"sort"
	"strconv"
	"strings"

	apps "k8s.io/api/apps/v1"
	authentication "k8s.io/api/authentication/v1"
	authorization "k8s.io/api/authorization/v1"
	autoscaling "k8s.io/api/autoscaling/v1"
	batch "k8s.io/api/batch/v1"
	coordination "k8s.io/api/coordination/v1"
	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	policy "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// documents are the group versions whose schemas are taken.
var documents = []string{
	"api__v1", "apis__apps__v1", "apis__authentication.k8s.io__v1", "apis__authorization.k8s.io__v1",
	"apis__autoscaling__v1", "apis__batch__v1", "apis__coordination.k8s.io__v1",
	"apis__discovery.k8s.io__v1", "apis__policy__v1",
}

// metrics are the schemas of metrics.k8s.io, which no module publishes; the words are those of
// k8s.io/metrics/pkg/apis/metrics/v1beta1/types.go.
const metrics = `
io.k8s.metrics.pkg.apis.metrics.v1beta1.ContainerMetrics	{"description":"ContainerMetrics sets resource usage metrics of a container.","type":"object","required":["name","usage"],"properties":{"name":{"description":"Container name corresponding to the one from pod.spec.containers.","type":"string","default":""},"usage":{"description":"The memory usage is the memory working set.","type":"object","additionalProperties":{"allOf":[{"$ref":"#/components/schemas/io.k8s.apimachinery.pkg.api.resource.Quantity"}],"default":{}}}}}
io.k8s.metrics.pkg.apis.metrics.v1beta1.NodeMetrics	{"description":"NodeMetrics sets resource usage metrics of a node.","type":"object","required":["timestamp","window","usage"],"properties":{PROPERTIES,"usage":{"description":"The memory usage is the memory working set.","type":"object","additionalProperties":{"allOf":[{"$ref":"#/components/schemas/io.k8s.apimachinery.pkg.api.resource.Quantity"}],"default":{}}}},"x-kubernetes-group-version-kind":[{"group":"metrics.k8s.io","kind":"NodeMetrics","version":"v1beta1"}]}
io.k8s.metrics.pkg.apis.metrics.v1beta1.NodeMetricsList	{"description":"NodeMetricsList is a list of NodeMetrics.","type":"object","required":["items"],"properties":{LIST,"items":{"description":"List of node metrics.","type":"array","items":{"allOf":[{"$ref":"#/components/schemas/io.k8s.metrics.pkg.apis.metrics.v1beta1.NodeMetrics"}],"default":{}}}},"x-kubernetes-group-version-kind":[{"group":"metrics.k8s.io","kind":"NodeMetricsList","version":"v1beta1"}]}
io.k8s.metrics.pkg.apis.metrics.v1beta1.PodMetrics	{"description":"PodMetrics sets resource usage metrics of a pod.","type":"object","required":["timestamp","window","containers"],"properties":{PROPERTIES,"containers":{"description":"Metrics for all containers are collected within the same time window.","type":"array","items":{"allOf":[{"$ref":"#/components/schemas/io.k8s.metrics.pkg.apis.metrics.v1beta1.ContainerMetrics"}],"default":{}}}},"x-kubernetes-group-version-kind":[{"group":"metrics.k8s.io","kind":"PodMetrics","version":"v1beta1"}]}
io.k8s.metrics.pkg.apis.metrics.v1beta1.PodMetricsList	{"description":"PodMetricsList is a list of PodMetrics.","type":"object","required":["items"],"properties":{LIST,"items":{"description":"List of pod metrics.","type":"array","items":{"allOf":[{"$ref":"#/components/schemas/io.k8s.metrics.pkg.apis.metrics.v1beta1.PodMetrics"}],"default":{}}}},"x-kubernetes-group-version-kind":[{"group":"metrics.k8s.io","kind":"PodMetricsList","version":"v1beta1"}]}
`

// bodies are the objects that clients may send.
var bodies = []any{
	core.ConfigMap{}, core.Event{}, core.Namespace{}, core.Node{}, core.PersistentVolume{},
	core.PersistentVolumeClaim{}, core.Pod{}, core.Secret{}, core.Service{}, core.ServiceAccount{},
	apps.DaemonSet{}, apps.Deployment{}, apps.ReplicaSet{}, apps.StatefulSet{},
	authentication.SelfSubjectReview{}, authorization.SelfSubjectAccessReview{},
	authorization.SelfSubjectRulesReview{},
	autoscaling.Scale{}, batch.CronJob{}, batch.Job{}, coordination.Lease{},
	discovery.EndpointSlice{}, meta.DeleteOptions{}, policy.Eviction{},
}

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("usage: schemas DIRECTORY")
	}
	write(filepath.Join(os.Args[1], "openapi.txt"), openapi())
	write(filepath.Join(os.Args[1], "protobuf.txt"), protobuf())
}

func write(path string, text []byte) {
	if err := os.WriteFile(path, text, 0o644); err != nil {
		log.Fatal(err)
	}
}

func openapi() []byte {
	command := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes")
	command.Stderr = os.Stderr
	found, err := command.Output()
	if err != nil {
		log.Fatalf("failed to find the module k8s.io/kubernetes: %v", err)
	}
	schemas := map[string]string{}
	for _, name := range documents {
		path := filepath.Join(strings.TrimSpace(string(found)), "api/openapi-spec/v3", name+"_openapi.json")
		text, err := os.ReadFile(path)
		if err != nil {
			log.Fatal(err)
		}
		var document struct {
			Components struct{ Schemas map[string]json.RawMessage }
		}
		if err := json.Unmarshal(text, &document); err != nil {
			log.Fatalf("%s: %v", path, err)
		}
		for schema, text := range document.Components.Schemas {
			var line bytes.Buffer
			if err := json.Compact(&line, text); err != nil {
				log.Fatalf("%s: %s: %v", path, schema, err)
			}
			if known, ok := schemas[schema]; ok && known != line.String() {
				log.Fatalf("%s: %s differs from that of another document", path, schema)
			}
			schemas[schema] = line.String()
		}
	}
	addMetrics(schemas)
	names := make([]string, 0, len(schemas))
	for name := range schemas {
		names = append(names, name)
	}
	sort.Strings(names)
	var out bytes.Buffer
	for _, name := range names {
		fmt.Fprintf(&out, "%s\t%s\n", name, schemas[name])
	}
	return out.Bytes()
}

// addMetrics adds the schemas of metrics.k8s.io, with the fields that all objects and lists have.
func addMetrics(schemas map[string]string) {
	var node, list struct{ Properties map[string]json.RawMessage }
	for name, into := range map[string]any{"Node": &node, "NodeList": &list} {
		if err := json.Unmarshal([]byte(schemas["io.k8s.api.core.v1."+name]), into); err != nil {
			log.Fatal(err)
		}
	}
	var common, ofList []string
	for _, field := range []string{"apiVersion", "kind", "metadata"} {
		common = append(common, fmt.Sprintf("%q:%s", field, node.Properties[field]))
		ofList = append(ofList, fmt.Sprintf("%q:%s", field, list.Properties[field]))
	}
	common = append(common,
		`"timestamp":{"description":"The following fields define time interval from which metrics were collected from the interval [Timestamp-Window, Timestamp].","allOf":[{"$ref":"#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.Time"}]}`,
		`"window":{"description":"The length of the interval.","type":"string"}`)
	words := strings.NewReplacer("PROPERTIES", strings.Join(common, ","), "LIST,", strings.Join(ofList, ",")+",")
	for _, line := range strings.Split(strings.TrimSpace(metrics), "\n") {
		name, schema, _ := strings.Cut(words.Replace(line), "\t")
		if !json.Valid([]byte(schema)) {
			log.Fatalf("%s is no JSON", name)
		}
		schemas[name] = schema
	}
}

// messages are the lines of each message that was met.
type messages map[string][]string

func protobuf() []byte {
	all := messages{}
	for _, body := range bodies {
		all.add(reflect.TypeOf(body))
	}
	names := make([]string, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	sort.Strings(names)
	var out bytes.Buffer
	for _, name := range names {
		fmt.Fprintf(&out, "%s\n%s", name, strings.Join(all[name], ""))
	}
	return out.Bytes()
}

// nameOf is the group and version of the package, and the type: apps/v1.Deployment.
func nameOf(t reflect.Type) string {
	parts := strings.Split(t.PkgPath(), "/")
	return parts[len(parts)-2] + "/" + parts[len(parts)-1] + "." + t.Name()
}

func (all messages) add(t reflect.Type) {
	if _, ok := all[nameOf(t)]; ok {
		return
	}
	all[nameOf(t)] = nil
	var lines []string
	for index := range t.NumField() {
		field := t.Field(index)
		tag := field.Tag.Get("protobuf")
		if tag == "" || tag == "-" {
			continue
		}
		number, err := strconv.Atoi(strings.Split(tag, ",")[1])
		if err != nil {
			log.Fatalf("%s.%s: the tag %q has no number", nameOf(t), field.Name, tag)
		}
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "" && !strings.Contains(options, "inline") {
			log.Fatalf("%s.%s: the JSON name is missing", nameOf(t), field.Name)
		}
		if name == "" {
			name = "."
		}
		lines = append(lines, fmt.Sprintf(" %d %s %s\n", number, name, all.form(field.Type, tag)))
	}
	all[nameOf(t)] = lines
}

// form is the form of a value: a leading * where zero and absent are two things.
func (all messages) form(t reflect.Type, tag string) string {
	switch t {
	case reflect.TypeOf(meta.Time{}):
		return "time"
	case reflect.TypeOf(meta.MicroTime{}):
		return "microtime"
	case reflect.TypeOf(resource.Quantity{}):
		return "quantity"
	case reflect.TypeOf(intstr.IntOrString{}):
		return "intorstring"
	case reflect.TypeOf(meta.FieldsV1{}):
		return "json"
	case reflect.TypeOf(runtime.RawExtension{}):
		return "json"
	}
	switch t.Kind() {
	case reflect.Pointer:
		return "*" + all.form(t.Elem(), tag)
	case reflect.String:
		return "string"
	case reflect.Bool:
		return "bool"
	case reflect.Int, reflect.Int32, reflect.Int64:
		return "int"
	case reflect.Map:
		return "map:" + all.form(t.Elem(), "")
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "bytes"
		}
		// A list with a type of its own is a message on the wire.
		if t.Name() != "" && t.PkgPath() != "" && !strings.Contains(tag, "casttype=") && !strings.Contains(tag, "castrepeated=") {
			return "items:" + all.form(t.Elem(), "")
		}
		return "list:" + all.form(t.Elem(), "")
	case reflect.Struct:
		all.add(t)
		return nameOf(t)
	default:
		log.Fatalf("%v: no form is known for it", t)
		return ""
	}
}
