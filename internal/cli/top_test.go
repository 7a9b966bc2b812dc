package cli

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"nightporter/internal/config"
	"nightporter/internal/live"
	"nightporter/internal/mcp/runtime"
)

var topNow = time.Date(2026, 12, 1, 3, 0, 0, 0, time.UTC)

// topOf is a view to which all of this was told. No command is run.
func topOf(t *testing.T, messages ...tea.Msg) topModel {
	t.Helper()
	m := newTop(&topSource{ctx: t.Context(), app: &app{}, cfg: &config.Config{}})
	return told(m, append([]tea.Msg{topTick(topNow)}, messages...)...)
}

func told(m topModel, messages ...tea.Msg) topModel {
	for _, msg := range messages {
		next, _ := m.Update(msg)
		m = next.(topModel)
	}
	return m
}

func press(keys string) (all []tea.Msg) {
	for _, k := range keys {
		all = append(all, tea.KeyPressMsg{Code: k, Text: string(k)})
	}
	return all
}

func topFrame(m topModel) string { return ansi.Strip(m.View().Content) }

func topProcessAt(socket, name string) live.Process {
	return live.Process{Record: live.Record{PID: 4242, Kind: "gateway", Name: name, Started: topNow.Add(-time.Hour), Socket: socket}}
}

func topServer(name string, state runtime.State) runtime.Status {
	return runtime.Status{Server: name, State: state, Reason: "because", Since: topNow.Add(-90 * time.Second), Tools: 3}
}

// topBusy is what a process has that does something.
func topBusy(t *testing.T) topModel {
	crm := topServer("crm", runtime.StateReady)
	crm.PID, crm.Memory = 777, 45e6
	crm.Calls = runtime.Calls{Ended: 12, Failed: 2, LastMS: 80, MedianMS: 120, InFlight: 1, Live: []runtime.LiveCall{{Tool: "find_order", Since: topNow.Add(-7 * time.Second)}}}
	failed := topServer("github", runtime.StateFailed)
	return topOf(t,
		topFound{processes: []live.Process{topProcessAt("a", "127.0.0.1:8722")}},
		topAnswer{socket: "a", clients: []live.Client{{
			Owner: "run 20261201-x", Servers: []runtime.Status{topServer("asleep", runtime.StateDormant), crm, failed},
			Activity: &live.Activity{Agent: "claude", Doing: "thinking", Since: topNow.Add(-3 * time.Second), Tools: 4, Denied: 1},
		}}},
		topResting{servers: []runtime.Status{topServer("crm", runtime.StateDormant), topServer("unused", runtime.StateDormant)}},
		topEvent{socket: "a", event: runtime.Event{Type: runtime.RoundComplete, Owner: "run 20261201-x", Time: topNow, ReadyServers: []string{"crm"}, FailedServers: []string{"github"}}, next: func() tea.Msg { return nil }},
	)
}

func TestTopShowsServersCallsRunsAndRounds(t *testing.T) {
	m := told(topBusy(t), tea.WindowSizeMsg{Width: 120, Height: 40})
	frame := topFrame(m)
	for _, want := range []string{
		"4 servers · 1 failed · 1 ready · 2 dormant · 1 call in flight · 1 process",
		"crm             ready        1m    12+1   120ms    45M",
		"7s  crm find_order  run 20261201-x",
		"1h  claude  thinking (3s), 4 tool calls, 1 refused",
		"failed github · ready crm  for run 20261201-x",
		"2 of 12 calls failed",
		"q quit",
	} {
		if !strings.Contains(frame, want) {
			t.Errorf("%q is not in\n%s", want, frame)
		}
	}
	order := []int{strings.Index(frame, " crm "), strings.Index(frame, " github "), strings.Index(frame, " asleep "), strings.Index(frame, " unused ")}
	for i := 1; i < len(order); i++ {
		if order[i-1] < 0 || order[i] < order[i-1] {
			t.Errorf("servers are not in order of what they do: %v\n%s", order, frame)
		}
	}
}

func TestTopFitsEverySize(t *testing.T) {
	busy := topBusy(t)
	strange := topServer("\x1b[31m漢字漢字漢字漢字漢字漢字漢字漢字\u202e", runtime.StateReady)
	strange.Reason = strings.Repeat("漢字\x07 long ", 60)
	var many []runtime.Status
	for i := range 50 {
		many = append(many, topServer(fmt.Sprintf("server-%02d", i), runtime.StateDormant))
	}
	busy = told(busy, topResting{servers: append(many, strange)})
	for _, m := range []topModel{busy, topOf(t), topOf(t, topFound{}, topResting{}), told(busy, press("?")...), told(busy, press("/漢")...), told(busy, topText{"x", strange.Reason})} {
		for _, size := range [][2]int{{80, 24}, {60, 20}, {120, 40}, {200, 60}, {30, 8}, {1, 1}, {5, 3}} {
			m := told(m, tea.WindowSizeMsg{Width: size[0], Height: size[1]})
			content := m.View().Content
			lines := strings.Split(content, "\n")
			if len(lines) > max(size[1], 3) {
				t.Errorf("%d lines at %v:\n%s", len(lines), size, content)
			}
			for _, line := range lines {
				if w := ansi.StringWidth(line); w > size[0] && size[0] > 8 {
					t.Errorf("a line has %d columns at %v: %q", w, size, line)
				}
				if bare := ansi.Strip(line); strings.ContainsAny(bare, "\x1b\x07\u202e") {
					t.Errorf("control characters reach the terminal: %q", bare)
				}
			}
		}
	}
}

func TestTheSelectedServerStaysSelectedAndInView(t *testing.T) {
	var many []runtime.Status
	for i := range 50 {
		many = append(many, topServer(fmt.Sprintf("server-%02d", i), runtime.StateDormant))
	}
	m := topOf(t, topFound{}, topResting{servers: many}, tea.WindowSizeMsg{Width: 60, Height: 20})
	m = told(m, press(strings.Repeat("j", 30))...)
	if frame := topFrame(m); !strings.Contains(frame, "> server-30") {
		t.Fatalf("server-30 is not selected in\n%s", frame)
	}
	m = told(m, topResting{servers: append([]runtime.Status{topServer("a", runtime.StateDormant), topServer("b", runtime.StateReady)}, many...)})
	if frame := topFrame(m); !strings.Contains(frame, "> server-30") {
		t.Errorf("another one is selected after servers came:\n%s", frame)
	}
	m = told(m, topResting{servers: many[:3]})
	if frame := topFrame(m); !strings.Contains(frame, "> server-00") {
		t.Errorf("none is selected after it went:\n%s", frame)
	}
}

func TestTopFilters(t *testing.T) {
	m := told(topBusy(t), press("/crm")...)
	m = told(m, tea.KeyPressMsg{Code: tea.KeyEnter})
	frame := topFrame(m)
	if !strings.Contains(frame, "> crm") || strings.Contains(frame, "unused") || !strings.Contains(frame, "filter: crm") {
		t.Errorf("filtered by crm:\n%s", frame)
	}
	m = told(m, tea.KeyPressMsg{Code: tea.KeyEscape})
	if frame := topFrame(m); !strings.Contains(frame, "unused") {
		t.Errorf("after esc:\n%s", frame)
	}
}

func TestTopSaysWhatToDoWhereThereIsNothing(t *testing.T) {
	if frame := topFrame(topOf(t)); !strings.Contains(frame, "Looking") {
		t.Errorf("before anything is known:\n%s", frame)
	}
	if frame := topFrame(topOf(t, topFound{}, topResting{})); !strings.Contains(frame, "nightporter import") {
		t.Errorf("without servers:\n%s", frame)
	}
	if frame := topFrame(topOf(t, topFound{err: errors.New("the folder is open")}, topResting{})); !strings.Contains(frame, "the folder is open") {
		t.Errorf("without an answer:\n%s", frame)
	}
	m := told(topOf(t, topFound{}, topResting{servers: []runtime.Status{topServer("unused", runtime.StateDormant)}}), press("s")...)
	if frame := topFrame(m); !strings.Contains(frame, "nightporter servers start unused") {
		t.Errorf("a start of what nobody has:\n%s", frame)
	}
}

// A process that hangs is asked by one question at a time, and what is known of it stays.
func TestAMuteProcessIsNotAskedAgainBeforeItAnswers(t *testing.T) {
	m := topBusy(t)
	found := topFound{processes: []live.Process{topProcessAt("a", "127.0.0.1:8722")}}
	m = told(m, found)
	if !m.processes[0].asked {
		t.Fatal("it was not asked")
	}
	_, cmd := m.Update(found)
	if cmd != nil {
		t.Error("it was asked again")
	}
	m = told(m, topAnswer{socket: "a", err: fmt.Errorf("x %w", live.ErrMute)})
	if frame := topFrame(m); !strings.Contains(frame, "does not answer") || !strings.Contains(frame, "crm ") {
		t.Errorf("a process that hangs:\n%s", frame)
	}
	if _, cmd := m.Update(found); cmd == nil {
		t.Error("it is not asked any more")
	}
	m = told(m, topFound{})
	if frame := topFrame(m); strings.Contains(frame, "asleep") {
		t.Errorf("after it ended:\n%s", frame)
	}
}
