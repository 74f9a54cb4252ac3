package stage

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nordix/meridio-nsp/test/demo/traffic"
)

// losses is what a phase cost in one namespace.
type losses struct {
	// sent and lost are UDP packets, dead those of the lost that came to a pod whose application had died, failed TCP connections.
	sent, lost, dead, failed int
	// last is when the last packet was sent that came to such a pod, since the phase began.
	last time.Duration
}

// lossesOf counts those of a phase.
func (p phaseResult) lossesOf(udp, tcp *traffic.Ledger, ledgersBegan time.Time) losses {
	u := udp.Count(p.began, p.ended)
	l := losses{sent: u.Sent, lost: u.LostAll(), dead: u.LostAt(p.dead...), failed: tcp.Count(p.began, p.ended).LostAll()}
	for _, target := range p.dead {
		if at, ok := u.Last[target]; ok {
			l.last = max(l.last, at-p.began.Sub(ledgersBegan))
		}
	}
	return l
}

func (l losses) add(m losses) losses {
	return losses{sent: l.sent + m.sent, lost: l.lost + m.lost, dead: l.dead + m.dead, failed: l.failed + m.failed, last: max(l.last, m.last)}
}

const (
	lossHead = "  %-22s  %15s  %15s  %15s  %15s"
	lossRow  = "  %-22s  %7s %7s  %7s %7s  %7s %7s  %7s %7s"
)

// lossTable is the table of all phases; totals leave out the phases after which nobody is there.
func lossTable(phases []phaseResult, of func(phaseResult) (on, off losses)) []string {
	lines := []string{
		fmt.Sprintf(lossHead, "", "UDP lost", "at dead pods", "last one, ms", "TCP failed"),
		fmt.Sprintf(lossRow, "fast path", "on", "off", "on", "off", "on", "off", "on", "off"),
	}
	var on, off losses
	for _, p := range phases {
		a, b := of(p)
		lines = append(lines, p.row(a, b))
		if len(p.dead) > 0 && !p.endless {
			on, off = on.add(a), off.add(b)
		}
	}
	total := phaseResult{phase: phase{short: "sum of deaths", dead: []int{0}}}
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return append(lines, strings.TrimRight(total.row(on, off), " "))
}

func (p phaseResult) row(on, off losses) string {
	n := func(v int) string { return fmt.Sprint(v) }
	dead := func(v int) string {
		if len(p.dead) == 0 {
			return "-"
		}
		return n(v)
	}
	last := func(l losses) string {
		if l.dead == 0 {
			return "-"
		}
		return fmt.Sprintf("%.0f", float64(l.last)/float64(time.Millisecond))
	}
	without := []string{n(off.lost), dead(off.dead), last(off), n(off.failed)}
	if p.endless {
		without[0], without[1], without[2] = without[0]+"+", without[1]+"+", "endless"
	}
	return fmt.Sprintf(lossRow, p.short, n(on.lost), without[0], dead(on.dead), without[1], last(on), without[2], n(on.failed), without[3])
}

// notes explain the table.
const notes = "\"Last one\" is when the last packet was sent that came to a dead pod, since it died. A + means that it was not over when the " +
	"demo went on; the sum leaves that out."

// honest says what is not real.
const honest = "Real are the control plane, the nsp, the sidecars, the load balancer, and each packet, which the kernel forwards between " +
	"network namespaces of this machine. Played are nodes and kubelets: a pod's status changes at the moment at which its application " +
	"dies, where a real kubelet takes up to a probe's period to notice, with the fast path and without. Both namespaces are under " +
	"load at the same time and share two cores or what there is, so times are longer than on a quiet machine."

// realSummary writes what was lost, and saves it with a picture.
func (w *world) realSummary() error {
	if len(w.phases) == 0 {
		return nil
	}
	for _, s := range []*side{w.red, w.blue} {
		s.fabric.stopLoad()
	}
	table := lossTable(w.phases, func(p phaseResult) (on, off losses) {
		r, b := w.red.fabric, w.blue.fabric
		return p.lossesOf(r.udp, r.tcp, w.realBegan), p.lossesOf(b.udp, b.tcp, w.realBegan)
	})
	title := fmt.Sprintf("What was lost of %d UDP packets and %d TCP connections a second, with and without the fast path",
		packetsPerSecond, connectionsPerSecond)
	w.screen.text("", bold, title)
	for i, l := range table {
		if i < 2 {
			l = w.screen.paint(dim, l)
		}
		w.screen.line(l)
	}
	w.screen.text("  ", dim, notes)
	w.screen.text("  ", dim, honest)
	err := w.save(title, table)
	w.screen.line("")
	return err
}

func (w *world) save(title string, table []string) error {
	if err := os.MkdirAll(w.results, 0o755); err != nil {
		return fmt.Errorf("saving results: %w", err)
	}
	summary, figure := filepath.Join(w.results, "packets.txt"), filepath.Join(w.results, "packets.svg")
	text := title + "\n\n" + strings.Join(table, "\n") + "\n\n" + strings.Join(wrap(notes+" "+honest, width), "\n") + "\n"
	if err := os.WriteFile(summary, []byte(text), 0o644); err != nil {
		return fmt.Errorf("saving results: %w", err)
	}
	file, err := os.Create(figure)
	if err != nil {
		return fmt.Errorf("saving results: %w", err)
	}
	if err := errors.Join(w.figure(title).WriteSVG(file), file.Close()); err != nil {
		return err
	}
	w.screen.line("  saved: " + summary)
	w.screen.line("         " + figure)
	return nil
}

func (w *world) figure(title string) traffic.Figure {
	f := traffic.Figure{Title: title, Slice: 50 * time.Millisecond}
	end := w.phases[len(w.phases)-1].ended
	for _, s := range []struct {
		title string
		side  *side
	}{{"red: fast path on", w.red}, {"blue: fast path off", w.blue}} {
		f.Panels = append(f.Panels, traffic.Panel{Title: s.title, Series: s.side.fabric.udp.Series(f.Slice, end)})
	}
	for _, p := range w.phases {
		f.Marks = append(f.Marks, traffic.Mark{At: p.began.Sub(w.realBegan), Text: p.short})
	}
	return f
}
