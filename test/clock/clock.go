// Package clock steps the wall clock for tests, as an administrator or NTP does on a machine, while time goes on as before. The machine's
// own clock is everybody's, so it is not touched.
package clock

import (
	"sync/atomic"
	"time"
	"unsafe"
)

// Clock is a clock that can be stepped. The zero value shows the time.
type Clock struct{ seconds atomic.Int64 }

// Step sets the clock forwards, or backwards, by whole seconds.
func (c *Clock) Step(by time.Duration) { c.seconds.Add(int64(by / time.Second)) }

// Now is time.Now on a machine whose clock was stepped: the wall clock shows another time, the monotonic clock the same. Under
// testing/synctest too, where time.Now has no reading of the monotonic clock, this has one.
func (c *Clock) Now() time.Time {
	now := time.Now()
	t := (*layout)(unsafe.Pointer(&now))
	if t.wall&hasMonotonic == 0 {
		t.wall, t.ext = hasMonotonic|uint64(t.ext-yearsTo1885)<<nanosecondBits|t.wall, now.UnixNano()
	}
	t.wall += uint64(c.seconds.Load()) << nanosecondBits
	return now
}

// layout is that of time.Time. With a reading of the monotonic clock, wall has the seconds since 1885 above the nanoseconds, and ext is
// the reading; without one, ext has the seconds since the year 1.
type layout struct {
	wall uint64
	ext  int64
	_    *time.Location
}

const (
	hasMonotonic   = 1 << 63
	nanosecondBits = 30
	yearsTo1885    = (1884*365 + 1884/4 - 1884/100 + 1884/400) * 24 * 60 * 60
)
