package conformance

import (
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
)

// Course is how a registry went: its state after each change. A list is explained by a state that it may have shown.
type Course struct {
	states []*Model
	// renders caches lists by filter and state.
	renders map[string]string
}

// NewCourse begins with a state.
func NewCourse(m *Model) *Course {
	return &Course{states: []*Model{m.Clone()}, renders: make(map[string]string)}
}

// Now is the number of the latest state.
func (c *Course) Now() int { return len(c.states) - 1 }

// Do changes the state and returns what the change returns.
func (c *Course) Do(change func(*Model) codes.Code) codes.Code {
	next := c.states[c.Now()].Clone()
	code := change(next)
	c.states = append(c.states, next)
	return code
}

// Elapse lets entries time out, each in a state of its own, up to an instant.
func (c *Course) Elapse(now time.Duration) {
	for {
		at, ok := c.states[c.Now()].NextDeadline()
		if !ok || at > now {
			return
		}
		c.Do(func(m *Model) codes.Code { m.Expire(at); return codes.OK })
	}
}

// List is the answer to a filter in a state, rendered.
func (c *Course) List(f *nspv1.Target, state int) string {
	key := fmt.Sprint(state, f.GetStatus(), f.GetType(), streamName(f.GetStream()))
	if s, ok := c.renders[key]; ok {
		return s
	}
	s := render(c.states[state].List(f))
	c.renders[key] = s
	return s
}

// Heard is a list that a watcher got, with the numbers of the first and the last state that it may show: what was done before
// the watch began is in it, what had not begun when it came is not.
type Heard struct {
	List        string
	First, Last int
}

// Explain checks what one watcher heard: each list is the one of a state, and no list is of an earlier state than the one before.
// States may be skipped. It returns the state of the last list.
func (c *Course) Explain(f *nspv1.Target, heard []Heard) (state int, err error) {
	for i, h := range heard {
		state = max(state, h.First)
		for ; state <= h.Last && c.List(f, state) != h.List; state++ {
		}
		if state > h.Last {
			return 0, fmt.Errorf("list %d shows no state from %d to %d:\n%s... which would be, at the end:\n%s",
				i+1, max(h.First, 0), h.Last, h.List, c.List(f, h.Last))
		}
	}
	return state, nil
}

// Latest is the present state, which must not be changed.
func (c *Course) Latest() *Model { return c.states[c.Now()] }
