package lb

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nordix/meridio-nsp/pkg/lb/nft"
)

// links calls changed after every change of links, addresses and routes, which can be the way to a target, until ctx ends.
func links(ctx context.Context, netns int, changed func()) error {
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{NetNS: netns})
	if err != nil {
		return fmt.Errorf("opening a connection for changes of links: %w", err)
	}
	var closing sync.WaitGroup
	defer closing.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	closing.Go(func() {
		<-ctx.Done()
		_ = conn.Close()
	})
	for _, group := range []uint32{
		unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
	} {
		if err := conn.JoinGroup(group); err != nil {
			return fmt.Errorf("subscribing to changes of links: %w", err)
		}
	}
	changed() // what changed before
	for {
		messages, err := conn.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS): // some were lost
			changed()
		case err != nil:
			return fmt.Errorf("waiting for changes of links: %w", err)
		case !onlyOurs(messages):
			changed()
		}
	}
}

// onlyOurs says whether all messages are about routes of the load balancer itself.
func onlyOurs(messages []netlink.Message) bool {
	const protocol = 5 // in struct rtmsg
	for _, m := range messages {
		isRoute := m.Header.Type == unix.RTM_NEWROUTE || m.Header.Type == unix.RTM_DELROUTE
		// That one of ours goes matters: its link may have taken it along.
		if !isRoute || m.Header.Type == unix.RTM_DELROUTE || len(m.Data) <= protocol || m.Data[protocol] != nft.RouteProtocol {
			return false
		}
	}
	return true
}
