package server

import (
	"slices"
	"sync"
)

// semaphore lets so many in at a time. Of those who wait, who are in the order in which they came, pick says who is next.
type semaphore struct {
	pick func(n int) int

	mu      sync.Mutex
	free    int
	waiting []chan struct{}
}

func newSemaphore(n int, pick func(n int) int) *semaphore { return &semaphore{free: n, pick: pick} }

func oldest(int) int   { return 0 }
func newest(n int) int { return n - 1 }

// take waits until it is let in, which it returns, or given up is closed.
func (s *semaphore) take(givenUp <-chan struct{}) bool {
	s.mu.Lock()
	if s.free > 0 {
		s.free--
		s.mu.Unlock()
		return true
	}
	mine := make(chan struct{})
	s.waiting = append(s.waiting, mine)
	s.mu.Unlock()
	select {
	case <-mine:
		return true
	case <-givenUp:
		s.leave(mine)
		return false
	}
}

// leave takes one who gave up out of those who wait, or passes on what he was given at the same moment.
func (s *semaphore) leave(mine chan struct{}) {
	s.mu.Lock()
	i := slices.Index(s.waiting, mine)
	if i >= 0 {
		s.waiting = slices.Delete(s.waiting, i, i+1)
	}
	s.mu.Unlock()
	if i < 0 {
		s.give()
	}
}

func (s *semaphore) give() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) == 0 {
		s.free++
		return
	}
	i := s.pick(len(s.waiting))
	close(s.waiting[i])
	if i == 0 {
		s.waiting[0] = nil
		s.waiting = s.waiting[1:]
		return
	}
	s.waiting = slices.Delete(s.waiting, i, i+1)
}
