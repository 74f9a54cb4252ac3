package traffic

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"
)

// Figure is a picture of how packets were shared and lost over time.
type Figure struct {
	Title string
	// Slice is the time that each count of the series stands for.
	Slice  time.Duration
	Panels []Panel
	// Marks are what happened.
	Marks []Mark
}

// Panel is one of several pictures with the same times.
type Panel struct {
	Title  string
	Series Series
}

// Mark is something that happened at a time since the beginning.
type Mark struct {
	At   time.Duration
	Text string
}

// Sizes in pixels.
const (
	plotWidth, plotHeight   = 1000, 230
	plotLeft, plotTop       = 60, 60
	plotBetween, plotLegend = 60, 22
)

// palette has colours that differ from each other and from the red of what is lost.
var palette = []string{
	"#4e79a7", "#f2c14e", "#59a14f", "#9c755f", "#b07aa1", "#76b7b2", "#a0cbe8", "#8cd17d", "#d4a6c8", "#86bcb6", "#bab0ac", "#499894",
}

const lostColour = "#e00000"

// WriteSVG draws the figure: for each panel what each target took, one above the other, and in front what was lost.
func (f Figure) WriteSVG(w io.Writer) error {
	var b bytes.Buffer
	height := plotTop + len(f.Panels)*(plotHeight+plotBetween) + plotLegend*len(f.Marks) + 20
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n",
		plotLeft+plotWidth+20, height)
	fmt.Fprintln(&b, `<rect width="100%" height="100%" fill="white"/>`)
	text(&b, plotLeft, 20, "start", f.Title)
	for i, p := range f.Panels {
		f.panel(&b, p, plotTop+i*(plotHeight+plotBetween))
	}
	f.legend(&b, plotTop+len(f.Panels)*(plotHeight+plotBetween))
	fmt.Fprintln(&b, `</svg>`)
	_, err := w.Write(b.Bytes())
	if err != nil {
		return fmt.Errorf("writing a figure: %w", err)
	}
	return nil
}

func text(b *bytes.Buffer, x, y int, anchor, s string) {
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="%s">`, x, y, anchor)
	_ = xml.EscapeText(b, []byte(s)) // a buffer takes all
	fmt.Fprintln(b, `</text>`)
}

// slices is how many slices of time there are in all panels.
func (f Figure) slices() (n int) {
	for _, p := range f.Panels {
		n = max(n, len(p.Series.Lost))
	}
	return max(n, 1)
}

// top is the greatest count in a slice, of all panels, so that they can be compared.
func (f Figure) top() int {
	top := 1
	for _, p := range f.Panels {
		for i, n := range p.Series.Lost {
			for _, took := range p.Series.Took {
				n += took[i]
			}
			top = max(top, n)
		}
	}
	return top
}

func (f Figure) panel(b *bytes.Buffer, p Panel, y int) {
	text(b, plotLeft, y-20, "start", p.Title)
	fmt.Fprintf(b, `<rect x="%d" y="%d" width="%d" height="%d" fill="#f6f6f6"/>`+"\n", plotLeft, y, plotWidth, plotHeight)
	top := f.top()
	perSecond := float64(top) / f.Slice.Seconds()
	text(b, plotLeft-5, y+10, "end", fmt.Sprintf("%.0f/s", perSecond))
	text(b, plotLeft-5, y+plotHeight, "end", "0")
	below := slices.Clone(p.Series.Lost)
	f.area(b, y, top, make([]int, len(below)), below, lostColour)
	for _, target := range slices.Sorted(maps.Keys(p.Series.Took)) {
		above := slices.Clone(below)
		for i, n := range p.Series.Took[target] {
			above[i] += n
		}
		f.area(b, y, top, below, above, palette[(target-1)%len(palette)])
		below = above
	}
	for i, m := range f.Marks {
		x := f.x(m.At)
		fmt.Fprintf(b, `<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="black" stroke-dasharray="3"/>`+"\n", x, y-4, x, y+plotHeight)
		text(b, x, y-6, "middle", fmt.Sprint(i+1))
	}
	f.seconds(b, y+plotHeight)
}

// area fills what lies between two lines of steps.
func (f Figure) area(b *bytes.Buffer, y, top int, from, to []int, colour string) {
	fmt.Fprintf(b, `<path fill="%s" d="`, colour)
	step := float64(plotWidth) / float64(f.slices())
	place := func(n int) float64 { return float64(y) + plotHeight*(1-float64(n)/float64(top)) }
	for i := range to {
		if from[i] == to[i] {
			continue
		}
		x, w := plotLeft+float64(i)*step, step
		fmt.Fprintf(b, "M%.1f %.1fh%.1fV%.1fh-%.1fz", x, place(from[i]), w, place(to[i]), w)
	}
	fmt.Fprintln(b, `"/>`)
}

func (f Figure) x(at time.Duration) int {
	return plotLeft + int(float64(plotWidth)*float64(at)/float64(f.Slice)/float64(f.slices()))
}

func (f Figure) seconds(b *bytes.Buffer, y int) {
	all := time.Duration(f.slices()) * f.Slice
	for at := time.Duration(0); at <= all; at += 5 * time.Second {
		text(b, f.x(at), y+14, "middle", fmt.Sprintf("%.0f s", at.Seconds()))
	}
}

// legend says what the marks are.
func (f Figure) legend(b *bytes.Buffer, y int) {
	fmt.Fprintf(b, `<rect x="%d" y="%d" width="12" height="12" fill="%s"/>`+"\n", plotLeft, y-26, lostColour)
	text(b, plotLeft+18, y-16, "start", "lost; the other colours are targets; gaps and peaks: this machine was too busy to send, and caught up")
	for i, m := range f.Marks {
		text(b, plotLeft, y+plotLegend*(i+1)-10, "start", fmt.Sprintf("%d  at %.1f s: %s", i+1, m.At.Seconds(), m.Text))
	}
}
