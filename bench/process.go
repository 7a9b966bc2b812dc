package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// usage is what a process has used, by /proc.
type usage struct {
	rss, anon float64       // resident, and what of that is no file's, in MB
	threads   int           //
	cpu       time.Duration // user and system
}

const mb = 1 << 20

// usageOf reads a process's use. tick is the unit of /proc/PID/stat on every Linux that Go runs on.
func usageOf(pid int) (u usage, err error) {
	const tick = 10 * time.Millisecond
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return u, err
	}
	for line := range strings.Lines(string(status)) {
		key, value, _ := strings.Cut(line, ":")
		fields := strings.Fields(value)
		if len(fields) == 0 {
			continue
		}
		n, _ := strconv.ParseFloat(fields[0], 64)
		switch key {
		case "VmRSS":
			u.rss = n * 1024 / mb
		case "RssAnon":
			u.anon = n * 1024 / mb
		case "Threads":
			u.threads = int(n)
		}
	}
	fields, err := stat(pid)
	if err != nil {
		return u, err
	}
	for _, field := range fields[11:13] {
		n, _ := strconv.Atoi(field)
		u.cpu += time.Duration(n) * tick
	}
	// Finer, where the kernel counts it: the run time in nanoseconds of all threads.
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	var fine time.Duration
	for _, file := range threads {
		text, err := os.ReadFile(file)
		if err != nil {
			return u, nil
		}
		ns, _ := strconv.ParseInt(strings.Fields(string(text))[0], 10, 64)
		fine += time.Duration(ns)
	}
	if fine > 0 {
		u.cpu = fine
	}
	return u, nil
}

// stat are the fields of /proc/PID/stat behind the program's name: state, parent, …
func stat(pid int) ([]string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	_, rest, _ := strings.Cut(string(text[strings.LastIndexByte(string(text), ')'):]), " ")
	return strings.Fields(rest), nil
}

// descendants counts the processes below one.
func descendants(pid int) int {
	entries, _ := filepath.Glob("/proc/[0-9]*")
	children := map[int][]int{}
	for _, entry := range entries {
		child, _ := strconv.Atoi(filepath.Base(entry))
		if fields, err := stat(child); err == nil {
			parent, _ := strconv.Atoi(fields[1])
			children[parent] = append(children[parent], child)
		}
	}
	n := 0
	for queue := []int{pid}; len(queue) > 0; queue = queue[1:] {
		n += len(children[queue[0]])
		queue = append(queue, children[queue[0]]...)
	}
	return n
}

// loadAverage is the machine's load over a minute.
func loadAverage() string {
	text, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(text), " ")
	return first
}
