package tap

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/nordix/meridio-nsp/pkg/listener"
)

// Listen listens on a unix socket that the processes of other users may connect to, as the socket of Meridio's TAPA.
func Listen(ctx context.Context, path string) (net.Listener, error) {
	l, err := listener.Unix(ctx, path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o666); err != nil { //nolint:gosec // the application may run as any user
		return nil, errors.Join(fmt.Errorf("opening the socket to other users: %w", err), l.Close())
	}
	return l, nil
}
