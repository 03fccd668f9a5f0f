// Command streamclient is a client of exec and port-forward made of client-go, for tests of the
// server side: whatever client-go accepts, kubectl and the API server accept.
//
//	streamclient exec    -url URL -over spdy|websocket [-protocols a,b] [-stdin] [-tty] [-sizes 80x24,100x30]
//	streamclient echo    -url URL -over spdy|websocket -bytes N [-parallel N]
//	streamclient forward -url URL -over spdy|websocket -ports 0:80,0:443
//	streamclient golden
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"hash"
	"io"
	"math/rand"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	spdyframes "github.com/moby/spdystream/spdy"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/client-go/util/exec"
)

// What the program exits with when a stream failed, and not the command it was for.
const failed = 250

func main() {
	if len(os.Args) < 2 {
		die(errors.New("exec, echo, forward or golden"))
	}
	flags := flag.NewFlagSet(os.Args[1], flag.ExitOnError)
	address := flags.String("url", "", "what to ask")
	over := flags.String("over", "spdy", "spdy or websocket")
	protocols := flags.String("protocols", "", "protocols to offer, instead of client-go's own")
	stdin := flags.Bool("stdin", false, "pass on standard input")
	stderr := flags.Bool("stderr", true, "ask for standard error")
	tty := flags.Bool("tty", false, "with a terminal")
	sizes := flags.String("sizes", "", "sizes of the terminal")
	count := flags.Int64("bytes", 1<<20, "bytes to send")
	parallel := flags.Int("parallel", 1, "how many at once")
	ports := flags.String("ports", "", "ports to forward")
	_ = flags.Parse(os.Args[2:])

	target, err := url.Parse(*address)
	if err != nil {
		die(err)
	}
	config := &rest.Config{Host: target.Scheme + "://" + target.Host}
	switch os.Args[1] {
	case "golden":
		golden()
	case "exec":
		options := remotecommand.StreamOptions{Stdout: os.Stdout, Tty: *tty}
		if *stdin {
			options.Stdin = os.Stdin
		}
		if *stderr && !*tty {
			options.Stderr = os.Stderr
		}
		if *sizes != "" {
			options.TerminalSizeQueue = queue(*sizes)
		}
		executor, err := executor(config, *over, *protocols, target)
		if err != nil {
			die(err)
		}
		status(executor.StreamWithContext(context.Background(), options))
	case "echo":
		echoes(config, *over, *protocols, target, *count, *parallel)
	case "forward":
		forward(config, *over, target, strings.Split(*ports, ","))
	default:
		die(fmt.Errorf("there is no %s", os.Args[1]))
	}
}

func die(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(failed)
}

// status exits as the remote command did.
func status(err error) {
	var code exec.CodeExitError
	switch {
	case err == nil:
		os.Exit(0)
	case errors.As(err, &code):
		os.Exit(code.Code)
	default:
		die(err)
	}
}

func executor(config *rest.Config, over, protocols string, target *url.URL) (remotecommand.Executor, error) {
	var offered []string
	if protocols != "" {
		offered = strings.Split(protocols, ",")
	}
	if over == "websocket" {
		if offered != nil {
			return remotecommand.NewWebSocketExecutorForProtocols(config, "GET", target.String(), offered...)
		}
		return remotecommand.NewWebSocketExecutor(config, "GET", target.String())
	}
	if offered != nil {
		transport, upgrader, err := spdy.RoundTripperFor(config)
		if err != nil {
			return nil, err
		}
		return remotecommand.NewSPDYExecutorForProtocols(transport, upgrader, "POST", target, offered...)
	}
	return remotecommand.NewSPDYExecutor(config, "POST", target)
}

// A terminal that has these sizes, one after the other.
type terminal struct {
	sizes chan remotecommand.TerminalSize
}

func queue(sizes string) *terminal {
	all := strings.Split(sizes, ",")
	terminal := &terminal{make(chan remotecommand.TerminalSize, len(all))}
	for _, text := range all {
		var size remotecommand.TerminalSize
		if _, err := fmt.Sscanf(text, "%dx%d", &size.Width, &size.Height); err != nil {
			die(err)
		}
		terminal.sizes <- size
	}
	return terminal
}

// Next blocks for ever after the last, as a terminal does that is not resized.
func (t *terminal) Next() *remotecommand.TerminalSize {
	size := <-t.sizes
	return &size
}

// echoes runs commands that send back what they get, and checks that they do.
func echoes(config *rest.Config, over, protocols string, target *url.URL, count int64, parallel int) {
	var all sync.WaitGroup
	results := make(chan error, parallel)
	for i := range parallel {
		all.Add(1)
		go func() {
			defer all.Done()
			executor, err := executor(config, over, protocols, target)
			if err != nil {
				results <- err
				return
			}
			sent, got := &counted{Hash: sha256.New()}, &counted{Hash: sha256.New()}
			bytes := io.LimitReader(rand.New(rand.NewSource(int64(i))), count)
			err = executor.StreamWithContext(context.Background(), remotecommand.StreamOptions{
				Stdin:  io.TeeReader(bytes, sent),
				Stdout: got,
			})
			if err == nil && (sent.count != count || got.count != count || !same(sent, got)) {
				err = fmt.Errorf("sent %d bytes of %d, got %d: not the same", sent.count, count, got.count)
			}
			results <- err
		}()
	}
	all.Wait()
	close(results)
	for err := range results {
		if err != nil {
			die(err)
		}
	}
	fmt.Println("the same")
}

type counted struct {
	hash.Hash
	count int64
}

func (c *counted) Write(p []byte) (int, error) {
	c.count += int64(len(p))
	return c.Hash.Write(p)
}

func same(a, b *counted) bool {
	return bytes.Equal(a.Sum(nil), b.Sum(nil))
}

// forward forwards ports until its standard input ends, and says where.
func forward(config *rest.Config, over string, target *url.URL, ports []string) {
	var dialer httpstream.Dialer
	var err error
	if over == "websocket" {
		dialer, err = portforward.NewSPDYOverWebsocketDialer(target, config)
	} else {
		var transport http.RoundTripper
		var upgrader spdy.Upgrader
		transport, upgrader, err = spdy.RoundTripperFor(config)
		dialer = spdy.NewDialer(upgrader, &http.Client{Transport: transport}, "POST", target)
	}
	if err != nil {
		die(err)
	}
	stop, ready := make(chan struct{}), make(chan struct{})
	forwarder, err := portforward.New(dialer, ports, stop, ready, io.Discard, os.Stderr)
	if err != nil {
		die(err)
	}
	go func() {
		<-ready
		forwarded, err := forwarder.GetPorts()
		if err != nil {
			die(err)
		}
		for _, port := range forwarded {
			fmt.Println(port.Local)
		}
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(stop)
		// The forwarder ends then; if it does not, this is no reason to hang.
		time.Sleep(10 * time.Second)
		die(errors.New("the forwarder does not stop"))
	}()
	if err := forwarder.ForwardPorts(); err != nil {
		die(err)
	}
}

// golden prints frames as spdystream writes them, one per line, in one connection's order.
func golden() {
	var wire bytes.Buffer
	framer, err := spdyframes.NewFramer(&wire, &wire)
	if err != nil {
		die(err)
	}
	stream := func(id int, headers ...string) spdyframes.Frame {
		all := http.Header{}
		for i := 0; i < len(headers); i += 2 {
			all.Set(headers[i], headers[i+1])
		}
		return &spdyframes.SynStreamFrame{StreamId: spdyframes.StreamId(id), Headers: all}
	}
	// One header each, since the order of several is random.
	frames := []spdyframes.Frame{
		stream(1, "streamType", "error"),
		stream(3, "streamType", "stdin"),
		stream(5, "streamType", "stdout"),
		stream(7, "port", "8080"),
		stream(9),
		&spdyframes.DataFrame{StreamId: 3, Data: []byte("hello\x00")},
		&spdyframes.DataFrame{StreamId: 3, Flags: spdyframes.DataFlagFin, Data: []byte{}},
		&spdyframes.PingFrame{Id: 1},
		&spdyframes.RstStreamFrame{StreamId: 5, Status: spdyframes.Cancel},
		&spdyframes.HeadersFrame{StreamId: 7, Headers: http.Header{"A": {"b"}}},
		&spdyframes.SettingsFrame{FlagIdValues: []spdyframes.SettingsFlagIdValue{{Id: 4, Value: 100}}},
		&spdyframes.WindowUpdateFrame{StreamId: 7, DeltaWindowSize: 1},
		stream(11, "streamType", "stdout"),
		&spdyframes.GoAwayFrame{LastGoodStreamId: 0},
	}
	for _, frame := range frames {
		if err := framer.WriteFrame(frame); err != nil {
			die(err)
		}
		fmt.Printf("%T %s\n", frame, hex.EncodeToString(wire.Bytes()))
		wire.Reset()
	}
}
