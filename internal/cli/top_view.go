package cli

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"charm.land/bubbles/v2/textinput"
	"charm.land/bubbles/v2/viewport"
	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"

	"nightporter/internal/live"
	"nightporter/internal/mcp/runtime"
)

// maxRounds is how many lines about rounds are kept: what fits on a screen.
const maxRounds = 50

// topModel is what top shows. It is changed by Update alone.
type topModel struct {
	source        *topSource
	width, height int
	now           time.Time

	looked    bool // whether it is known what is there
	processes []*topProcess
	resting   []runtime.Status
	rested    time.Time // when resting was asked for
	rounds    []string  // lines, oldest first
	problem   string    // why it is not known what is there

	selected string // the key of a row
	message  string // how the last key's wish ended
	filter   textinput.Model
	pane     *topText // shown in place of the view
	scroll   viewport.Model
}

// topProcess is a process, and what it last said.
type topProcess struct {
	live.Process
	clients []live.Client
	asked   bool // it has not answered yet: it is not asked again
	mute    bool
}

// topRow is a server of a client, or one that nobody has.
type topRow struct {
	runtime.Status
	owner   string
	process *topProcess // nil: nobody has it
}

func (r *topRow) key() string {
	if r.process == nil {
		return r.Server
	}
	return strings.Join([]string{r.Server, r.owner, r.process.Socket}, "\x00")
}

type topTick time.Time

func newTop(s *topSource) topModel {
	m := topModel{source: s, width: usualWidth, height: 24, now: time.Now(), filter: textinput.New(), scroll: viewport.New()}
	m.filter.Prompt = "filter: "
	m.filter.CharLimit = 64 // more than any name
	return m
}

func topTicks() tea.Cmd { return tea.Tick(topEvery, func(t time.Time) tea.Msg { return topTick(t) }) }

func (m topModel) Init() tea.Cmd { return tea.Batch(m.source.find, m.source.resting, topTicks()) }

func (m topModel) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = max(msg.Width, 1), max(msg.Height, 1)
		m.layPane()
	case topTick:
		m.now = time.Time(msg)
		next := []tea.Cmd{topTicks(), m.source.find}
		if m.now.Sub(m.rested) >= topRests {
			m.rested = m.now
			next = append(next, m.source.resting)
		}
		return m, tea.Batch(next...)
	case topFound:
		return m.found(msg)
	case topResting:
		if msg.err == nil {
			m.resting = msg.servers
		} else {
			m.message = msg.err.Error()
		}
		m.rested = m.now
	case topAnswer:
		for _, p := range m.processes {
			if p.Socket != msg.socket {
				continue
			}
			p.asked, p.mute = false, errors.Is(msg.err, live.ErrMute)
			if msg.err == nil {
				p.clients = msg.clients
			}
		}
	case topEvent:
		if msg.next == nil {
			return m, nil
		}
		if line := roundLine(msg.event); line != "" {
			m.rounds = append(m.rounds, line)
			m.rounds = m.rounds[max(0, len(m.rounds)-maxRounds):]
		}
		next := []tea.Cmd{msg.next}
		for _, p := range m.processes { // what is shown is now behind
			if p.Socket == msg.socket && !p.asked {
				p.asked = true
				next = append(next, m.source.ask(p.Process))
			}
		}
		return m, tea.Batch(next...)
	case topDone:
		m.message = oneLine(string(msg))
		return m, m.source.find
	case topText:
		m.pane = &msg
		m.layPane()
		m.scroll.GotoTop()
		if strings.HasPrefix(msg.title, "last log") {
			m.scroll.GotoBottom()
		}
	case tea.KeyPressMsg:
		return m.key(msg)
	}
	return m, nil
}

// found takes over which processes are there, and asks those that have answered before.
func (m topModel) found(msg topFound) (tea.Model, tea.Cmd) {
	m.looked, m.problem = true, ""
	if msg.err != nil {
		m.problem = msg.err.Error()
		return m, nil
	}
	var next []tea.Cmd
	var there []*topProcess
	for _, found := range msg.processes {
		i := slices.IndexFunc(m.processes, func(p *topProcess) bool { return p.Socket == found.Socket })
		if i >= 0 {
			there = append(there, m.processes[i])
		} else {
			there = append(there, &topProcess{Process: found})
			next = append(next, m.source.follow(found))
		}
		if p := there[len(there)-1]; !p.asked {
			p.asked = true
			next = append(next, m.source.ask(p.Process))
		}
	}
	m.processes = there
	return m, tea.Batch(next...)
}

// layPane gives the text in the pane the terminal's size.
func (m *topModel) layPane() {
	if m.pane != nil {
		m.scroll.SetWidth(m.width)
		m.scroll.SetHeight(max(m.height-2, 1))
		m.scroll.SetContent(ansi.Wrap(printable(strings.ReplaceAll(m.pane.text, "\t", "    ")), m.width, ""))
	}
}

func (m topModel) key(k tea.KeyPressMsg) (tea.Model, tea.Cmd) {
	pressed := k.String()
	var cmd tea.Cmd
	switch {
	case pressed == "ctrl+c":
		return m, tea.Quit
	case m.filter.Focused():
		switch pressed {
		case "esc":
			m.filter.Reset()
			m.filter.Blur()
		case "enter":
			m.filter.Blur()
		default:
			m.filter, cmd = m.filter.Update(k)
		}
		return m, cmd
	case m.pane != nil:
		if pressed == "esc" || pressed == "q" {
			m.pane = nil
			return m, nil
		}
		m.scroll, cmd = m.scroll.Update(k)
		return m, cmd
	}
	m.message = ""
	rows := m.rows()
	at := m.at(rows)
	move := func(to int) {
		if len(rows) > 0 {
			m.selected = rows[min(max(to, 0), len(rows)-1)].key()
		}
	}
	switch pressed {
	case "q":
		return m, tea.Quit
	case "up", "k":
		move(at - 1)
	case "down", "j":
		move(at + 1)
	case "pgup":
		move(at - m.height/2)
	case "pgdown":
		move(at + m.height/2)
	case "home", "g":
		move(0)
	case "end", "G":
		move(len(rows) - 1)
	case "/":
		return m, m.filter.Focus()
	case "esc":
		m.filter.Reset()
	case "?":
		m.pane = &topText{"keys", topKeys}
		m.layPane()
		m.scroll.GotoTop()
	case "s", "x", "r", "l", "t":
		if len(rows) == 0 {
			return m, nil
		}
		return m.wish(pressed, rows[at])
	}
	return m, nil
}

// wish does what a key asks for with a server.
func (m topModel) wish(pressed string, row topRow) (tea.Model, tea.Cmd) {
	m.selected = row.key()
	if pressed == "t" {
		if row.process == nil {
			return m, m.source.tools(nil, row.Server)
		}
		return m, m.source.tools(&row.process.Process, row.Server)
	}
	if row.process == nil {
		m.message = "no running Nightporter has " + oneLine(row.Server)
		if pressed == "s" || pressed == "r" {
			m.message += "; nightporter servers start " + oneLine(row.Server) + " starts it once"
		}
		return m, nil
	}
	if pressed == "l" {
		return m, m.source.logs(row.process.Process, row.Server)
	}
	verb := map[string]string{"s": "start", "x": "stop", "r": "restart"}[pressed]
	m.message = verb + " " + oneLine(row.Server) + " …"
	return m, m.source.act(row.process.Process, row.Server, verb)
}

const topKeys = `up, down, j, k    select a server; also page up, page down, home, end
s                 start the server
x                 stop it: its next use starts it again
r                 restart it
l                 what it last wrote to its standard error
t                 its tools
/                 show only servers and clients that contain a text; esc shows all
q                 leave

start, stop and restart act in the process that has the server, for all of its clients.

CALLS are those that ended, and after a + those in flight. MEDIAN is how long the last
64 of them took for the client.`

// rows are the servers, those that do something first.
func (m *topModel) rows() []topRow {
	var rows []topRow
	held := map[string]bool{}
	for _, p := range m.processes {
		alien := isAlien(p.Record, m.source.cfg)
		for _, c := range p.clients {
			for _, s := range c.Servers {
				rows = append(rows, topRow{s, c.Owner, p})
				held[s.Server] = held[s.Server] || !alien
			}
		}
	}
	for _, s := range m.resting {
		if !held[s.Server] {
			rows = append(rows, topRow{Status: s})
		}
	}
	wanted := strings.ToLower(m.filter.Value())
	rows = slices.DeleteFunc(rows, func(r topRow) bool {
		return !strings.Contains(strings.ToLower(r.Server+"\x00"+r.owner+"\x00"+stateWord(r.Status)), wanted)
	})
	rank := func(r topRow) int {
		switch {
		case r.State == runtime.StateReady || r.State == runtime.StateStarting || r.State == runtime.StateFailed:
			return 0
		case r.process != nil:
			return 1
		}
		return 2
	}
	slices.SortStableFunc(rows, func(a, b topRow) int { return cmp.Or(rank(a)-rank(b), strings.Compare(a.Server, b.Server)) })
	return rows
}

// at is which row is selected: the first, when the one that was is not there any more.
func (m *topModel) at(rows []topRow) int {
	return max(0, slices.IndexFunc(rows, func(r topRow) bool { return r.key() == m.selected }))
}

var (
	topBold  = lipgloss.NewStyle().Bold(true)
	topDim   = lipgloss.NewStyle().Faint(true)
	topHere  = lipgloss.NewStyle().Reverse(true)
	topState = map[runtime.State]lipgloss.Style{
		runtime.StateReady:    lipgloss.NewStyle().Foreground(lipgloss.Green),
		runtime.StateStarting: lipgloss.NewStyle().Foreground(lipgloss.Yellow),
		runtime.StateFailed:   lipgloss.NewStyle().Foreground(lipgloss.Red).Bold(true),
	}
)

func (m topModel) View() tea.View {
	v := tea.NewView(m.frame())
	v.AltScreen = true
	return v
}

// frame is the whole view, of exactly the terminal's height.
func (m *topModel) frame() string {
	if m.pane != nil {
		return strings.Join([]string{
			topBold.Render(m.cut(oneLine(m.pane.title))), m.scroll.View(), topDim.Render(m.cut("up, down: scroll · esc: back")),
		}, "\n")
	}
	rows := m.rows()
	foot := []string{m.foot()}
	if m.message != "" {
		foot = append([]string{m.cut(m.message)}, foot...)
	}
	head := []string{m.head(rows)}
	if m.problem != "" {
		head = append(head, m.cut(oneLine(m.problem)))
	}
	for _, p := range m.processes {
		if p.mute {
			head = append(head, m.cut(oneLine(p.String()+" does not answer; what it last said is shown")))
		}
	}
	if len(rows) == 0 {
		return m.page(append(head, m.nothing()...), nil, foot)
	}
	at := m.at(rows)
	below := m.details(rows[at])
	// Servers have at least half of what is left; what happens shares the rest.
	left := m.height - len(head) - len(foot) - len(below) - 1 // of the table's own head
	shown := min(len(rows), max(left-len(m.happening(left/2)), 1))
	below = append(below, m.happening(left-shown)...)
	first := min(max(0, at-shown/2), len(rows)-shown)
	return m.page(append(head, m.table(rows, first, shown, at)...), below, foot)
}

// page puts the parts together, and what is at the bottom there.
func (m *topModel) page(head, below, foot []string) string {
	lines := append(head, below...)
	room := max(m.height-len(foot), 0)
	lines = lines[:min(len(lines), room)]
	for len(lines) < room {
		lines = append(lines, "")
	}
	return strings.Join(append(lines, foot...), "\n")
}

func (m *topModel) cut(text string) string { return ansi.Truncate(text, m.width, "…") }

// head sums up, the most important first: a narrow terminal cuts it at its end.
func (m *topModel) head(rows []topRow) string {
	states, calls := map[runtime.State]int{}, 0
	for _, r := range rows {
		states[r.State]++
		calls += r.Calls.InFlight
	}
	parts := []string{plural(len(rows), "server")}
	for _, state := range []runtime.State{runtime.StateFailed, runtime.StateStarting, runtime.StateReady, runtime.StateDormant} {
		if states[state] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", states[state], state))
		}
	}
	parts = append(parts, plural(calls, "call")+" in flight", plural(len(m.processes), "process"))
	return topBold.Render(m.cut("Nightporter  " + strings.Join(parts, " · ")))
}

func plural(n int, word string) string {
	switch {
	case n == 1:
	case strings.HasSuffix(word, "s"):
		word += "es"
	default:
		word += "s"
	}
	return fmt.Sprintf("%d %s", n, word)
}

func (m *topModel) foot() string {
	if m.filter.Focused() {
		return m.cut(m.filter.View())
	}
	help := "s start  x stop  r restart  l logs  t tools  / filter  ? keys  q quit"
	if lipgloss.Width(help) > m.width {
		help = "s start x stop r restart l logs t tools / filter ? q quit"
	}
	if text := m.filter.Value(); text != "" {
		help = "filter: " + oneLine(text) + " (esc: all)  " + help
	}
	return topDim.Render(m.cut(help))
}

// nothing says what to do where there is nothing to see.
func (m *topModel) nothing() []string {
	switch {
	case m.filter.Value() != "":
		return []string{"", m.cut("No server or client contains " + oneLine(m.filter.Value()) + ". esc shows all.")}
	case !m.looked || m.rested.IsZero():
		return []string{"", "Looking …"}
	}
	lines := []string{"", "There are no servers yet.", "", "Take over those of another program:"}
	lines = append(lines, "    nightporter import", "Or add one:", "    nightporter servers add NAME -- COMMAND", "Then let a client use them:", "    nightporter connect claude-code")
	for i := range lines {
		lines[i] = m.cut(lines[i])
	}
	return lines
}

// topColumn is a column of the table.
type topColumn struct {
	title string
	width int
	most  int // it grows to that where there is room; 0: it does not
	right bool
	cell  func(m *topModel, r topRow) string
}

// topColumns are the columns, those first that stay where there is little room.
var topColumns = []topColumn{
	{"SERVER", 14, 30, false, func(_ *topModel, r topRow) string { return oneLine(r.Server) }},
	{"STATE", 8, 11, false, func(_ *topModel, r topRow) string { return stateWord(r.Status) }},
	{"SINCE", 5, 0, true, func(m *topModel, r topRow) string { return span(m.now.Sub(r.Since)) }},
	{"CALLS", 6, 0, true, func(_ *topModel, r topRow) string {
		if r.Calls.InFlight > 0 {
			return fmt.Sprintf("%d+%d", r.Calls.Ended, r.Calls.InFlight)
		}
		return number(int64(r.Calls.Ended))
	}},
	{"MEDIAN", 6, 0, true, func(_ *topModel, r topRow) string { return took(r.Calls, r.Calls.MedianMS) }},
	{"MEM", 5, 0, true, func(_ *topModel, r topRow) string {
		if r.Memory == 0 {
			return "-"
		}
		return fmt.Sprintf("%dM", r.Memory/1e6)
	}},
	{"FOR", 16, 44, false, func(_ *topModel, r topRow) string { return orDash(r.owner) }},
	{"PID", 7, 0, true, func(_ *topModel, r topRow) string { return number(int64(r.PID)) }},
	{"LAST", 6, 0, true, func(_ *topModel, r topRow) string { return took(r.Calls, r.Calls.LastMS) }},
}

// topWhy is shown where there is room after all others: the selected server's is below the table in any case.
var topWhy = topColumn{"WHY", 24, 0, false, func(_ *topModel, r topRow) string { return oneLine(cmp.Or(r.By, r.Reason)) }}

// took is a latency; a call that took less than a millisecond took some time, none has none.
func took(c runtime.Calls, ms int64) string {
	if c.Ended == 0 {
		return "-"
	}
	if ms == 0 {
		return "<1ms"
	}
	if ms < 10_000 {
		return fmt.Sprintf("%dms", ms)
	}
	return span(time.Duration(ms) * time.Millisecond)
}

// span is a time in at most four characters.
func span(d time.Duration) string {
	for _, unit := range []struct {
		of   time.Duration
		name string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "m"}} {
		if d >= unit.of {
			return fmt.Sprintf("%d%s", d/unit.of, unit.name)
		}
	}
	return fmt.Sprintf("%ds", max(d, 0)/time.Second)
}

// table is the rows from first on, with a line of titles.
func (m *topModel) table(rows []topRow, first, shown, at int) []string {
	const gap, mark = 2, 2
	left := max(m.width-mark, 1)
	var columns []topColumn
	for _, c := range topColumns {
		if left < c.width {
			if len(columns) > 0 {
				break
			}
			c.width = left
		}
		columns = append(columns, c)
		left -= c.width + gap
	}
	left += gap
	for i := range columns {
		c := &columns[i]
		longest := len(c.title)
		for _, r := range rows {
			longest = max(longest, ansi.StringWidth(c.cell(m, r)))
		}
		grow := min(left, max(0, min(longest, c.most)-c.width))
		c.width, left = c.width+grow, left-grow
	}
	if left -= gap; left >= topWhy.width {
		why := topWhy
		why.width = left
		columns = append(columns, why)
	}
	line := func(sign string, text func(topColumn) string, paint func(topColumn, string) string) string {
		cells := make([]string, len(columns))
		for i, c := range columns {
			cell := ansi.Truncate(text(c), c.width, "…")
			pad := strings.Repeat(" ", c.width-ansi.StringWidth(cell))
			if cell = paint(c, cell); c.right {
				cells[i] = pad + cell
			} else {
				cells[i] = cell + pad
			}
		}
		return ansi.Truncate(sign+strings.Join(cells, strings.Repeat(" ", gap)), m.width, "")
	}
	plain := func(_ topColumn, text string) string { return text }
	lines := []string{topDim.Render(line("  ", func(c topColumn) string { return c.title }, plain))}
	for i, r := range rows[first : first+shown] {
		cell := func(c topColumn) string { return c.cell(m, r) }
		if first+i == at {
			lines = append(lines, topHere.Render(line("> ", cell, plain)))
			continue
		}
		lines = append(lines, line("  ", cell, func(c topColumn, text string) string {
			if c.title == "STATE" {
				return topState[r.State].Render(text)
			}
			return text
		}))
	}
	return lines
}

// details is what there is to say of the selected server that the table may not have room for.
func (m *topModel) details(r topRow) []string {
	parts := []string{plural(r.Tools, "tool")}
	if r.PID != 0 {
		parts = append(parts, fmt.Sprintf("pid %d", r.PID))
	}
	if r.Calls.Failed > 0 {
		parts = append(parts, fmt.Sprintf("%d of %s failed", r.Calls.Failed, plural(r.Calls.Ended, "call")))
	}
	if r.Calls.Ended > 0 {
		parts = append(parts, "last took "+took(r.Calls, r.Calls.LastMS))
	}
	if r.owner != "" {
		parts = append(parts, "for "+oneLine(r.owner))
	}
	why := oneLine(r.Reason)
	if r.By != "" && !strings.Contains(why, oneLine(r.By)) {
		why += "; started by " + oneLine(r.By)
	}
	lines := append([]string{strings.Join(parts, " · ")}, strings.Split(ansi.Wrap(why, m.width-4, ""), "\n")...)
	lines = lines[:min(len(lines), 3)]
	for i := range lines {
		lines[i] = topDim.Render(m.cut("  " + lines[i]))
	}
	return append([]string{""}, lines...)
}

// happening is runs, calls in flight and rounds, in at most so many lines.
func (m *topModel) happening(most int) []string {
	type section struct {
		title string
		lines []string
	}
	runs, calls, rounds := section{title: "RUNS"}, section{title: "CALLS IN FLIGHT"}, section{title: "ROUNDS"}
	for _, p := range m.processes {
		for _, c := range p.clients {
			if d := c.Activity; d != nil {
				line := fmt.Sprintf("%4s  %s  %s (%s), %s", span(m.now.Sub(p.Started)), oneLine(d.Agent), oneLine(d.Doing), span(m.now.Sub(d.Since)), plural(d.Tools, "tool call"))
				if d.Denied > 0 {
					line += fmt.Sprintf(", %d refused", d.Denied)
				}
				runs.lines = append(runs.lines, line+"  "+oneLine(p.Name))
			}
			for _, s := range c.Servers {
				for _, call := range s.Calls.Live {
					calls.lines = append(calls.lines, fmt.Sprintf("%4s  %s %s  %s", span(m.now.Sub(call.Since)), oneLine(s.Server), oneLine(call.Tool), oneLine(c.Owner)))
				}
			}
		}
	}
	for _, line := range slices.Backward(m.rounds) {
		rounds.lines = append(rounds.lines, line)
	}
	sections := slices.DeleteFunc([]section{runs, calls, rounds}, func(s section) bool { return len(s.lines) == 0 })
	var lines []string
	for i, s := range sections {
		// Those that follow have their share: a blank line, a title, and a line at least.
		room := (most - len(lines)) / (len(sections) - i)
		if room < 3 {
			if most-len(lines) < 3 {
				break
			}
			room = 3
		}
		lines = append(lines, "", topBold.Render(m.cut(s.title)))
		for _, line := range s.lines[:min(len(s.lines), room-2)] {
			lines = append(lines, m.cut(line))
		}
	}
	return lines
}

// roundLine tells an event of a round; empty: it is in others.
func roundLine(e runtime.Event) string {
	at := e.Time.Local().Format(time.TimeOnly)
	switch e.Type {
	case runtime.StartingBatch:
		return fmt.Sprintf("%s  starting %s  for %s", at, oneLine(strings.Join(e.Servers, ", ")), oneLine(e.Owner))
	case runtime.Failed:
		return fmt.Sprintf("%s  %s failed: %s", at, oneLine(e.Server), oneLine(e.Error))
	case runtime.RoundComplete:
		var parts []string
		for _, p := range []struct {
			word  string
			names []string
		}{{"failed", e.FailedServers}, {"cancelled", e.CancelledServers}, {"ready", e.ReadyServers}} {
			if len(p.names) > 0 {
				parts = append(parts, p.word+" "+oneLine(strings.Join(p.names, ", ")))
			}
		}
		return fmt.Sprintf("%s  %s  for %s", at, strings.Join(parts, " · "), oneLine(e.Owner))
	}
	return ""
}
