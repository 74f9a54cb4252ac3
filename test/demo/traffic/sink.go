package traffic

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nordix/meridio-nsp/test/netns"
)

// Sink is a target: an application that takes packets and answers connections, and a tap that sees what comes to the interface
// whether the application lives or not.
type Sink struct {
	cfg     SinkConfig
	tap     *os.File
	running sync.WaitGroup

	mu  sync.Mutex
	app *application
}

// SinkConfig says which target it is.
type SinkConfig struct {
	Space *netns.Space
	// Link is the interface that packets come to.
	Link string
	// Number is that of the target, from 1.
	Number int
	// At is the address and port that the load is for.
	At netip.AddrPort
	// UDP keeps account.
	UDP *Ledger
}

// application is one that lives.
type application struct {
	packets  *net.UDPConn
	listener net.Listener
}

// OpenSink makes a target whose application does not live yet.
func OpenSink(cfg SinkConfig) (*Sink, error) {
	s := &Sink{cfg: cfg}
	if err := cfg.Space.Do(s.openTap); err != nil {
		return nil, fmt.Errorf("watching what comes to %s: %w", cfg.Space.Name, err)
	}
	s.running.Go(s.watch)
	return s, nil
}

func (s *Sink) openTap() error {
	link, err := net.InterfaceByName(s.cfg.Link)
	if err != nil {
		return err
	}
	// Protocol 0 hears nothing until it is bound to the interface.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	protocol := uint16(unix.ETH_P_IP&0xff<<8 | unix.ETH_P_IP>>8) // in network order
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: link.Index}); err != nil {
		return errors.Join(err, unix.Close(fd))
	}
	s.tap = os.NewFile(uintptr(fd), "tap")
	return roomy(s.tap)
}

func (s *Sink) watch() {
	buffer := make([]byte, 256)
	for {
		n, err := s.tap.Read(buffer)
		if err != nil {
			return
		}
		if number, ok := parse(buffer[:n], s.cfg.At); ok {
			s.cfg.UDP.Came(number, s.cfg.Number)
		}
	}
}

// parse reads the number of a packet of the load from its IPv4 header on.
func parse(b []byte, at netip.AddrPort) (number uint32, ok bool) {
	if len(b) < 20 || b[0]>>4 != 4 || b[9] != unix.IPPROTO_UDP {
		return 0, false
	}
	header := int(b[0]&15) * 4
	to, _ := netip.AddrFromSlice(b[16:20])
	if header < 20 || len(b) < header+12 || to != at.Addr() || binary.BigEndian.Uint16(b[header+2:]) != at.Port() {
		return 0, false
	}
	return binary.BigEndian.Uint32(b[header+8:]), true
}

// Live starts the application, unless it lives.
func (s *Sink) Live() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.app != nil {
		return nil
	}
	app := &application{}
	if err := s.cfg.Space.Do(func() error { return app.listen(int(s.cfg.At.Port())) }); err != nil {
		app.close()
		return fmt.Errorf("starting the application in %s: %w", s.cfg.Space.Name, err)
	}
	s.app = app
	s.running.Go(func() { s.take(app.packets) })
	s.running.Go(func() { s.answer(app.listener) })
	return nil
}

// listen takes whatever comes to the port: the VIP itself may come to the pod later, and go.
func (a *application) listen(port int) (err error) {
	if a.packets, err = net.ListenUDP("udp4", &net.UDPAddr{Port: port}); err != nil {
		return err
	}
	if err := roomy(a.packets); err != nil {
		return err
	}
	a.listener, err = net.Listen("tcp4", fmt.Sprintf(":%d", port)) //nolint:noctx // returns at once
	return err
}

// roomy gives a socket room for all that comes while this process does not run.
func roomy(socket syscall.Conn) error {
	raw, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20) })
	return errors.Join(err, failed)
}

func (a *application) close() {
	if a.packets != nil {
		a.packets.Close()
	}
	if a.listener != nil {
		a.listener.Close()
	}
}

func (s *Sink) take(packets *net.UDPConn) {
	buffer := make([]byte, 64)
	for {
		n, _, err := packets.ReadFromUDPAddrPort(buffer)
		if err != nil {
			return
		}
		if n == 4 {
			s.cfg.UDP.Took(binary.BigEndian.Uint32(buffer), s.cfg.Number)
		}
	}
}

func (s *Sink) answer(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		_, _ = conn.Write(binary.BigEndian.AppendUint16(nil, uint16(s.cfg.Number)))
		conn.Close()
	}
}

// Die ends the application: packets that come find nobody, connections are refused. The tap goes on. It is safe to call again.
func (s *Sink) Die() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.app != nil {
		s.app.close()
		s.app = nil
	}
}

// Close ends everything. It is safe to call again.
func (s *Sink) Close() {
	s.Die()
	s.tap.Close()
	s.running.Wait()
}
