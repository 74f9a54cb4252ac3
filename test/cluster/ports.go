package cluster

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
)

// FreePort returns a loopback port that nobody listens on. It is taken below the range of ephemeral ports: above, a client
// that dials while the server is away could be given the very port it dials.
func FreePort() (int, error) {
	const lowest, attempts = 12000, 200
	ephemeral := 32768
	if content, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		_, _ = fmt.Sscan(string(content), &ephemeral) // unreadable is the default
	}
	if ephemeral <= lowest {
		return listenOnce(0)
	}
	for range attempts {
		if port, err := listenOnce(lowest + rand.IntN(ephemeral-lowest)); err == nil {
			return port, nil
		}
	}
	return 0, fmt.Errorf("no free port in %d..%d after %d attempts", lowest, ephemeral-1, attempts)
}

func listenOnce(port int) (int, error) {
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return 0, err
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port, nil
}
