package sidecar

import (
	"context"
	"log/slog"

	"github.com/vishvananda/netlink"
)

// subscribe is told by the kernel when an address comes or goes. Where it is not, the addresses are still read every so often.
func subscribe(ctx context.Context, log *slog.Logger) <-chan struct{} {
	changed := make(chan struct{}, 1)
	updates := make(chan netlink.AddrUpdate)
	err := netlink.AddrSubscribeWithOptions(updates, ctx.Done(), netlink.AddrSubscribeOptions{
		ErrorCallback: func(err error) { log.Debug("the kernel's word on addresses is lost", "error", err) },
	})
	if err != nil {
		log.Warn("the kernel does not tell when addresses change, they are read every so often", "error", err, "every", lookAgain)
		return nil
	}
	go func() {
		for range updates { // Closed after ctx has ended.
			select {
			case changed <- struct{}{}:
			default:
			}
		}
	}()
	return changed
}
