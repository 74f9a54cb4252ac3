package stage

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nordix/meridio-nsp/test/demo/traffic"
)

// display shows the load now, on a terminal in place.
type display struct {
	world *world
	began time.Time
	shown time.Time
	lines int
}

// until shows until something is done.
func (d *display) until(ctx context.Context, done <-chan error) error {
	for {
		select {
		case err := <-done:
			return err
		default:
			d.tick(ctx)
		}
	}
}

// tick waits a little, and shows what is new: often in place, else every second.
func (d *display) tick(ctx context.Context) {
	pause(ctx, 20*time.Millisecond)
	every := time.Second
	if d.world.screen.colour {
		every = 200 * time.Millisecond
	}
	if time.Since(d.shown) >= every {
		d.shown = time.Now()
		d.draw()
	}
}

func (d *display) draw() {
	screen := d.world.screen
	if d.lines > 0 && screen.colour { // a terminal
		fmt.Fprintf(screen.out, "\x1b[%dA\x1b[J", d.lines)
	}
	d.lines = 0
	for _, s := range []*side{d.world.red, d.world.blue} {
		lead := s.name
		for _, l := range wrap(s.fabric.says(d.began), width-11) {
			screen.line(fmt.Sprintf("     %-5s %s", lead, l))
			lead = ""
			d.lines++
		}
	}
}

// says is what happens to packets now, and what was lost since a time.
func (f *fabric) says(since time.Time) string {
	now := time.Now()
	to := now.Add(-traffic.Grace)
	lost := f.udp.Count(since, to)
	failed := f.tcp.Count(since, now.Add(-time.Second)).LostAll()
	text := fmt.Sprintf("lost %d UDP", lost.LostAll())
	for _, target := range slices.Sorted(maps.Keys(lost.Lost)) {
		where := "on the way"
		if target != traffic.Nowhere {
			where = fmt.Sprintf("at real-%d", target)
		}
		text += fmt.Sprintf(" (%d %s)", lost.Lost[target], where)
	}
	text += fmt.Sprintf(", %d TCP; packets/s:", failed)
	c := f.now()
	for _, target := range slices.Sorted(maps.Keys(c.Took)) {
		text += fmt.Sprintf(" %d:%d", target, c.Took[target]*int(time.Second/time.Millisecond)/int(watched/time.Millisecond))
	}
	if len(c.Took) == 0 {
		text += " none"
	}
	return text
}
