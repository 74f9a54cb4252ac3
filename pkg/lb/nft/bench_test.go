package nft

import (
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/nordix/meridio-nsp/test/netns"
)

// BenchmarkUpdate is how long the kernel takes to forward as desired after a target left, and after it came back.
func BenchmarkUpdate(b *testing.B) {
	for _, n := range []int{3, 10, 100, 1000} {
		lb := netns.Test(b, "lb")
		require.NoError(b, lb.AddBridge("br0", "172.16.0.1/16"))
		plane, err := New(Config{Netns: lb.FD()})
		require.NoError(b, err)
		all := &Desired{
			VIPs: allVIPs, Flows: []Flow{{Name: "flow-a", Stream: "stream-a", VIPs: allVIPs}},
			Streams: []Stream{{Name: "stream-a", MaxTargets: max(n, 100)}},
		}
		for id := 1; id <= n; id++ {
			t := Target{Identifier: uint32(id), Addresses: []netip.Addr{netip.MustParseAddr(address4(id))}}
			all.Streams[0].Targets = append(all.Streams[0].Targets, t)
		}
		less := *all
		less.Streams = []Stream{all.Streams[0]}
		less.Streams[0].Targets = all.Streams[0].Targets[:n-1]
		_, err = plane.Apply(all)
		require.NoError(b, err)
		for name, way := range map[string][2]*Desired{"remove": {all, &less}, "add": {&less, all}} {
			b.Run(fmt.Sprintf("%s/targets=%d", name, n), func(b *testing.B) {
				for b.Loop() {
					b.StopTimer()
					_, err := plane.Apply(way[0])
					require.NoError(b, err)
					b.StartTimer()
					_, err = plane.Apply(way[1])
					require.NoError(b, err)
				}
			})
		}
		plane.Close()
	}
}

// BenchmarkForward is what a packet costs from the client's system call to the target's socket. With virtual links the kernel does all of it on the
// processor, and mostly on the thread, of the sender: cpu-ns/op is the time of that thread, which other programs disturb least, and x-plain how many
// times that of plain routing it is.
func BenchmarkForward(b *testing.B) {
	w := newWorld(b, 10)
	for i := range w.targets {
		var c net.PacketConn
		require.NoError(b, w.targets[i].Do(func() (err error) { c, err = net.ListenPacket("udp4", "0.0.0.0:5000"); return err }))
		b.Cleanup(func() { c.Close() })
	}
	var plain float64
	flood := func(b *testing.B, to string) {
		cost := w.flood(b, netip.MustParseAddr(to))
		if plain == 0 {
			plain = cost
		}
		b.ReportMetric(cost, "cpu-ns/op")
		b.ReportMetric(cost/plain, "x-plain")
	}
	b.Run("plain", func(b *testing.B) { flood(b, address4(1)) })
	var ids []int
	for i := range 10 {
		ids = append(ids, i+1)
	}
	simple10 := simple(ids...)
	w.apply(simple10)
	b.Run("plain-past-table", func(b *testing.B) { flood(b, address4(1)) })
	b.Run("flows=1", func(b *testing.B) { flood(b, vip4) })
	many := simple(ids...)
	many.Flows = nil
	for i := range 100 {
		many.Flows = append(many.Flows, Flow{
			Name: fmt.Sprint("f", i), Stream: "stream-a", VIPs: allVIPs, Protocols: []Protocol{UDP},
			DestinationPorts: []PortRange{{uint16(4950 + i), uint16(4950 + i)}},
		})
	}
	w.apply(many)
	b.Run("flows=100", func(b *testing.B) { flood(b, vip4) })
	draining := simple(ids...)
	draining.Streams[0].Targets[0].Draining = true
	w.apply(draining)
	b.Run("draining", func(b *testing.B) { flood(b, vip4) })
	for id := 11; id <= 100; id++ { // the same machines once more: it is the rules that count
		t := target(1 + id%10)
		t.Identifier = uint32(id)
		simple10.Streams[0].Targets = append(simple10.Streams[0].Targets, t)
	}
	w.apply(simple10)
	b.Run("targets=100", func(b *testing.B) { flood(b, vip4) })
}

// flood sends datagrams of 18 bytes from 256 ports and returns the nanoseconds of processor time that one takes.
func (w *world) flood(b *testing.B, to netip.Addr) float64 {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var fds []int
	require.NoError(b, w.client.Do(func() error {
		for range 256 {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
			if err != nil {
				return err
			}
			if err := unix.Connect(fd, &unix.SockaddrInet4{Port: 5000, Addr: to.As4()}); err != nil {
				return err
			}
			fds = append(fds, fd)
		}
		return nil
	}))
	defer func() {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}()
	packet := make([]byte, 18)
	for _, fd := range fds { // neighbours are known afterwards
		_, _ = unix.Write(fd, packet)
	}
	time.Sleep(10 * time.Millisecond)
	before := threadTime(b)
	i := 0
	for b.Loop() {
		_, _ = unix.Write(fds[i%len(fds)], packet)
		i++
	}
	return float64(threadTime(b)-before) / float64(b.N)
}

func threadTime(b *testing.B) time.Duration {
	var t unix.Timespec
	require.NoError(b, unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t))
	return time.Duration(t.Nano())
}

// BenchmarkCompile is the part of an update that is done before the kernel is asked, for 10 streams with 10 flows each of which one target changes.
func BenchmarkCompile(b *testing.B) {
	d := &Desired{VIPs: allVIPs}
	for i := range 10 {
		s := Stream{Name: fmt.Sprint("s", i), MaxTargets: 100}
		for id := 1; id <= 100; id++ {
			s.Targets = append(s.Targets, Target{Identifier: uint32(id)})
		}
		d.Streams = append(d.Streams, s)
		for j := range 10 {
			d.Flows = append(d.Flows, Flow{
				Name: fmt.Sprint("f", i, "-", j), Stream: s.Name, VIPs: allVIPs, Protocols: []Protocol{TCP, UDP}, Sources: prefixes("0.0.0.0/0"),
				DestinationPorts: []PortRange{{uint16(1000 + 10*i + j), uint16(1000 + 10*i + j)}},
			})
		}
	}
	shares, marks := shareAll(d)
	c := compiler{learn: time.Minute}
	program, _ := c.compile(d, shares, marks)
	state := stateOf(program)
	for i := 0; b.Loop(); i++ {
		s := share{active: shares["s0"][ipv4].active[:99-i%2]}
		shares["s3"] = map[family]share{ipv4: s, ipv6: s}
		program, _ = c.compile(d, shares, marks)
		state = difference(state, program, always).after
	}
}
