// Package traffic makes load, takes it, and keeps account of every packet: who got it, or where it was lost.
package traffic

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// Grace is how long a packet may be on its way; after that it counts as lost.
const Grace = 200 * time.Millisecond

// Nowhere is the number of no target.
const Nowhere = 0

// Ledger keeps what became of each packet, or of each connection. All its methods can be called at the same time.
type Ledger struct {
	began time.Time

	mu      sync.Mutex
	packets []packet
}

type packet struct {
	sent time.Duration
	// came is the target whose interface it came to, took the one whose application took it.
	came, took int
}

// NewLedger makes a ledger whose times count from began.
func NewLedger(began time.Time) *Ledger { return &Ledger{began: began} }

// Send notes that a packet is sent now, and numbers it.
func (l *Ledger) Send(now time.Time) uint32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := packet{sent: now.Sub(l.began)}
	if n := len(l.packets); n > 0 {
		p.sent = max(p.sent, l.packets[n-1].sent) // several senders may be a little out of order
	}
	l.packets = append(l.packets, p)
	return uint32(len(l.packets) - 1)
}

// Came notes that a packet came to the interface of a target. Numbers that were never given are ignored, here and below.
func (l *Ledger) Came(number uint32, target int) {
	l.note(number, func(p *packet) { p.came = target })
}

// Took notes that the application of a target took a packet.
func (l *Ledger) Took(number uint32, target int) {
	l.note(number, func(p *packet) { p.came, p.took = target, target })
}

func (l *Ledger) note(number uint32, f func(*packet)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if int(number) < len(l.packets) {
		f(&l.packets[number])
	}
}

// Count is what became of the packets that were sent in some time.
type Count struct {
	Sent int
	// Took is how many the application of each target took.
	Took map[int]int
	// Lost is how many came to each target and were taken by nobody; at Nowhere those that came to none.
	Lost map[int]int
	// Last is when the last packet was sent that was lost at each of them, since the ledger began.
	Last map[int]time.Duration
}

// LostAll is how many were lost, wherever.
func (c Count) LostAll() int { return sum(c.Lost) }

// LostAt is how many were lost at these targets.
func (c Count) LostAt(targets ...int) (n int) {
	for _, t := range targets {
		n += c.Lost[t]
	}
	return n
}

// TookAll is how many were taken, by whomever.
func (c Count) TookAll() int { return sum(c.Took) }

func sum(m map[int]int) (n int) {
	for v := range maps.Values(m) {
		n += v
	}
	return n
}

// Count counts the packets that were sent from a time on and before another. The later one should be Grace ago.
func (l *Ledger) Count(from, to time.Time) Count {
	c := Count{Took: map[int]int{}, Lost: map[int]int{}, Last: map[int]time.Duration{}}
	l.between(from, to, func(p packet) {
		c.Sent++
		if p.took != Nowhere {
			c.Took[p.took]++
			return
		}
		c.Lost[p.came]++
		c.Last[p.came] = p.sent
	})
	return c
}

// between calls f for the packets of some time, in the order in which they were sent.
func (l *Ledger) between(from, to time.Time, f func(packet)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	first, last := from.Sub(l.began), to.Sub(l.began)
	for _, p := range l.packets[l.search(first):l.search(max(first, last))] {
		f(p)
	}
}

// search finds the first packet that was sent at a time or after it. The lock is held.
func (l *Ledger) search(at time.Duration) int {
	i, _ := slices.BinarySearchFunc(l.packets, at, func(p packet, at time.Duration) int {
		if p.sent < at {
			return -1
		}
		return 1
	})
	return i
}

// Series are counts over time.
type Series struct {
	// Took has one count a slice for each target, Lost for all packets that were lost.
	Took map[int][]int
	Lost []int
}

// Series cuts the time from the beginning until to into slices.
func (l *Ledger) Series(slice time.Duration, to time.Time) Series {
	n := int((to.Sub(l.began) + slice - 1) / slice)
	s := Series{Took: map[int][]int{}, Lost: make([]int, n)}
	l.between(l.began, to, func(p packet) {
		i := int(p.sent / slice)
		if p.took == Nowhere {
			s.Lost[i]++
			return
		}
		if s.Took[p.took] == nil {
			s.Took[p.took] = make([]int, n)
		}
		s.Took[p.took][i]++
	})
	return s
}
