package lab

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// maxLife ends a lab whose test has gone without stopping it, whatever it was
// told to ignore. Longer than any test.
const maxLife = 10 * time.Minute

// Main is the program: lab CONFIG, with CONFIG a JSON object or @FILE.
func Main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) == 3 && os.Args[1] == grandchildArg {
		return grandchild(os.Args[2])
	}
	if len(os.Args) < 2 {
		return fmt.Errorf("want the configuration as the argument: JSON, or @FILE")
	}
	config, err := read(os.Args[1])
	if err != nil {
		return err
	}
	log, err := openJournal(config.Name, config.Log)
	if err != nil {
		return err
	}
	// These two last as long as the process.
	time.AfterFunc(maxLife, func() { os.Exit(1) })
	go func() {
		<-log.gone // and with it the test
		os.Exit(1)
	}()

	start := Entry{What: "start", Args: os.Args, Cwd: workingDir(), Parent: os.Getppid()}
	if config.LogEnv {
		start.Env = environ()
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	log.write(start)
	go func() {
		for s := range signals {
			log.write(Entry{What: "signal", Text: s.String()})
			if !config.IgnoreTerm {
				os.Exit(0)
			}
		}
	}()
	if config.Grandchild {
		if _, err := spawnGrandchild(config.Log); err != nil {
			return err
		}
	}
	sleep(context.Background(), time.Duration(config.StartDelay))
	fmt.Fprint(os.Stderr, config.Stderr)
	fmt.Fprint(os.Stdout, config.Stdout)
	if config.Exit != nil {
		log.write(Entry{What: "exit", Status: *config.Exit})
		os.Exit(*config.Exit)
	}
	return newServer(config, log).stdio(os.Stdin, os.Stdout)
}

func workingDir() string {
	dir, _ := os.Getwd() // a folder that has gone is no reason to stop
	return dir
}

// stdio serves one client until its input ends; requests under way end with it.
func (s *server) stdio(in io.Reader, out io.Writer) error {
	var writing sync.Mutex
	write := func(text []byte) {
		writing.Lock()
		defer writing.Unlock()
		_, _ = out.Write(text) // a client that has gone shows as the end of the input
	}
	raw := func(line []byte) {
		s.log.sent(line)
		write(append(line, '\n'))
	}
	send := func(m message) { raw(m.bytes()) }
	if s.Era != Modern {
		defer s.addSink(&sink{send: send})()
	}
	ctx, cancel := context.WithCancel(context.Background())
	var working sync.WaitGroup
	defer working.Wait()
	defer cancel()
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil && len(line) == 0 {
			s.log.write(Entry{What: "eof"})
			if s.IgnoreEOF {
				select {} // until killed, or for maxLife
			}
			if err == io.EOF {
				return nil
			}
			return fmt.Errorf("read stdin: %w", err)
		}
		var m message
		bad := json.Unmarshal(line, &m) != nil
		s.log.received(m.Method, line, bad, nil)
		if bad {
			continue
		}
		p := m.params()
		s.receive(ctx, &exchange{
			server: s, message: m, params: p, modern: s.modern(p),
			send: send, raw: raw, junk: func(text string) { write([]byte(text)) },
		}, working.Go)
	}
}
