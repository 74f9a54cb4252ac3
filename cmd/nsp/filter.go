package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"

	"github.com/nordix/meridio-nsp/pkg/cli"
)

// streamFilter selects by parts of a stream's name; empty is any.
type streamFilter struct{ trench, conduit, stream string }

func (f *streamFilter) addTo(c *connection, cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.trench, "trench", "", "only of this trench")
	flags.StringVar(&f.conduit, "conduit", "", "only of this conduit")
	flags.StringVar(&f.stream, "stream", "", "only of this stream, by its name or as trench/conduit/stream")
	c.completeParts(cmd, "trench", (*targetpoolv1.Stream).GetTrench)
	c.completeParts(cmd, "conduit", (*targetpoolv1.Stream).GetConduit)
	c.completeParts(cmd, "stream", (*targetpoolv1.Stream).GetName)
}

// split takes a full name of a stream apart.
func (f streamFilter) split() (streamFilter, error) {
	parts := strings.Split(f.stream, "/")
	switch {
	case len(parts) == 1:
		return f, nil
	case len(parts) == 3 && !slices.Contains(parts, ""):
		return streamFilter{parts[0], parts[1], parts[2]}, nil
	}
	return f, cli.Usage(fmt.Errorf("--stream is %q: write its name, or trench/conduit/stream", f.stream))
}

func (f streamFilter) has(s *targetpoolv1.Stream) bool {
	is := func(want, have string) bool { return want == "" || want == have }
	return is(f.trench, s.GetTrench()) && is(f.conduit, s.GetConduit()) && is(f.stream, s.GetName())
}

// poolFilter selects and sorts pools.
type poolFilter struct {
	streamFilter
	namespace, accepted, reason, sortBy string
}

func (f *poolFilter) addTo(c *connection, cmd *cobra.Command) {
	f.streamFilter.addTo(c, cmd)
	flags := cmd.Flags()
	flags.StringVar(&f.accepted, "accepted", "", "only those that are accepted (yes) or not (no)")
	flags.StringVar(&f.reason, "reason", "", "only those with this reason, as NotPermitted")
	addSort(cmd, &f.sortBy, poolOrders)
	complete(cmd, "accepted", "yes", "no")
}

func (f *poolFilter) validate() (err error) {
	if f.streamFilter, err = f.split(); err != nil {
		return err
	}
	if f.accepted != "" && f.accepted != "yes" && f.accepted != "no" {
		return cli.Usage(fmt.Errorf("--accepted is %q: choose yes or no", f.accepted))
	}
	return validateSort(f.sortBy, poolOrders)
}

func (f *poolFilter) apply(resp *targetpoolv1.ListPoolsResponse) {
	resp.Pools = slices.DeleteFunc(resp.GetPools(), func(p *targetpoolv1.PoolInfo) bool {
		return !f.has(p.GetStream()) || f.namespace != "" && f.namespace != p.GetNamespace() ||
			f.accepted != "" && (f.accepted == "yes") != p.GetAccepted() || f.reason != "" && !strings.EqualFold(f.reason, p.GetReason())
	})
	if order := poolOrders[f.sortBy]; order != nil {
		slices.SortStableFunc(resp.Pools, order)
	}
}

// The orders, by the names of columns. Numbers come largest first.
var poolOrders = map[string]func(a, b *targetpoolv1.PoolInfo) int{
	"namespace": func(a, b *targetpoolv1.PoolInfo) int { return cmp.Compare(a.GetNamespace(), b.GetNamespace()) },
	"name":      func(a, b *targetpoolv1.PoolInfo) int { return cmp.Compare(a.GetName(), b.GetName()) },
	"stream": func(a, b *targetpoolv1.PoolInfo) int {
		return cmp.Compare(streamName(a.GetStream(), ""), streamName(b.GetStream(), ""))
	},
	"accepted": func(a, b *targetpoolv1.PoolInfo) int {
		return cmp.Or(cmp.Compare(one(a.GetAccepted()), one(b.GetAccepted())), cmp.Compare(a.GetReason(), b.GetReason()))
	},
	"members": func(a, b *targetpoolv1.PoolInfo) int { return cmp.Compare(len(b.GetMembers()), len(a.GetMembers())) },
	"ready":   func(a, b *targetpoolv1.PoolInfo) int { return cmp.Compare(readyMembers(b), readyMembers(a)) },
	"active":  func(a, b *targetpoolv1.PoolInfo) int { return cmp.Compare(activeMembers(b), activeMembers(a)) },
}

// targetFilter selects and sorts registrations.
type targetFilter struct {
	streamFilter
	service, pod, state, status, kind, sortBy string
}

func (f *targetFilter) addTo(c *connection, cmd *cobra.Command) {
	f.streamFilter.addTo(c, cmd)
	flags := cmd.Flags()
	flags.StringVar(&f.service, "service", "", "only members of this Service, as namespace/name")
	flags.StringVar(&f.pod, "pod", "", "only of this pod, as namespace/name; none is those that no pod is known for")
	flags.StringVar(&f.state, "state", "", "only those that load balancers know as active, draining or inactive, or not at all (none)")
	flags.StringVar(&f.status, "status", "", "only those that are registered as enabled or disabled, or blocked")
	flags.StringVar(&f.kind, "type", "", "only of this type, as default or frontend")
	addSort(cmd, &f.sortBy, targetOrders)
	complete(cmd, "state", targetStates...)
	complete(cmd, "status", targetStatuses...)
	complete(cmd, "type", "default", "frontend")
	c.completeFlag(cmd, "service", c.completePools)
	c.completeFlag(cmd, "pod", c.completePods)
}

var (
	targetStates   = []string{"active", "draining", "inactive", "none"}
	targetStatuses = []string{"enabled", "disabled", "blocked"}
)

func (f *targetFilter) validate() (err error) {
	if f.streamFilter, err = f.split(); err != nil {
		return err
	}
	choose := func(flag, value string, from []string) error {
		if value == "" || slices.Contains(from, strings.ToLower(value)) {
			return nil
		}
		return cli.Usage(fmt.Errorf("--%s is %q: choose one of %s", flag, value, strings.Join(from, ", ")))
	}
	if f.service != "" && strings.Count(f.service, "/") != 1 {
		return cli.Usage(fmt.Errorf("--service is %q: write namespace/name", f.service))
	}
	if f.pod != "" && f.pod != "none" && strings.Count(f.pod, "/") != 1 {
		return cli.Usage(fmt.Errorf("--pod is %q: write namespace/name, or none", f.pod))
	}
	return errors.Join(choose("state", f.state, targetStates), choose("status", f.status, targetStatuses), validateSort(f.sortBy, targetOrders))
}

// apply needs the pools where a Service is asked for.
func (f *targetFilter) apply(resp *targetpoolv1.ListTargetsResponse, pools []*targetpoolv1.PoolInfo) {
	resp.Targets = slices.DeleteFunc(resp.GetTargets(), func(t *targetpoolv1.TargetInfo) bool {
		return !f.has(t.GetStream()) || !f.hasPod(t) || !f.hasState(t) || !f.hasStatus(t) ||
			f.kind != "" && !strings.EqualFold(f.kind, t.GetType()) || f.service != "" && !memberOf(t, pools, f.service)
	})
	if order := targetOrders[f.sortBy]; order != nil {
		slices.SortStableFunc(resp.Targets, order)
	}
}

func (f *targetFilter) hasPod(t *targetpoolv1.TargetInfo) bool {
	return f.pod == "" || f.pod == t.GetPod() || f.pod == "none" && t.GetPod() == ""
}

func (f *targetFilter) hasState(t *targetpoolv1.TargetInfo) bool {
	state := strings.ToLower(stateName(t.GetState()))
	return f.state == "" || strings.EqualFold(f.state, state) || strings.EqualFold(f.state, "none") && state == "-"
}

func (f *targetFilter) hasStatus(t *targetpoolv1.TargetInfo) bool {
	if strings.EqualFold(f.status, "blocked") {
		return t.GetBlocked()
	}
	return f.status == "" || strings.EqualFold(f.status, t.GetStatus())
}

func memberOf(t *targetpoolv1.TargetInfo, pools []*targetpoolv1.PoolInfo, service string) bool {
	return slices.ContainsFunc(pools, func(p *targetpoolv1.PoolInfo) bool {
		return poolName(p) == service && keyOf(p.GetStream()) == keyOf(t.GetStream()) &&
			slices.ContainsFunc(p.GetMembers(), func(m *targetpoolv1.MemberInfo) bool {
				return m.GetUid() != "" && m.GetUid() == t.GetPodUid()
			})
	})
}

var targetOrders = map[string]func(a, b *targetpoolv1.TargetInfo) int{
	"id": func(a, b *targetpoolv1.TargetInfo) int { return cmp.Compare(a.GetId(), b.GetId()) },
	"stream": func(a, b *targetpoolv1.TargetInfo) int {
		return cmp.Or(cmp.Compare(streamName(a.GetStream(), ""), streamName(b.GetStream(), "")), cmp.Compare(numberOf(a), numberOf(b)))
	},
	"identifier": func(a, b *targetpoolv1.TargetInfo) int { return cmp.Compare(numberOf(a), numberOf(b)) },
	"address":    func(a, b *targetpoolv1.TargetInfo) int { return firstAddr(a).Compare(firstAddr(b)) },
	"state":      func(a, b *targetpoolv1.TargetInfo) int { return cmp.Compare(a.GetState(), b.GetState()) },
	"status":     func(a, b *targetpoolv1.TargetInfo) int { return cmp.Compare(a.GetStatus(), b.GetStatus()) },
	"pod":        func(a, b *targetpoolv1.TargetInfo) int { return cmp.Compare(a.GetPod(), b.GetPod()) },
	// The latest first.
	"caused": func(a, b *targetpoolv1.TargetInfo) int { return b.GetCaused().AsTime().Compare(a.GetCaused().AsTime()) },
}

// numberOf is the identifier as a number; what is none comes last.
func numberOf(t *targetpoolv1.TargetInfo) uint64 {
	n, err := strconv.ParseUint(t.GetIdentifier(), 10, 64)
	if err != nil {
		return 1 << 63
	}
	return n
}

func firstAddr(t *targetpoolv1.TargetInfo) netip.Addr {
	if len(t.GetIps()) == 0 {
		return netip.Addr{}
	}
	text, _, _ := strings.Cut(t.GetIps()[0], "/")
	a, _ := netip.ParseAddr(text)
	return a
}

func addSort[T any](cmd *cobra.Command, to *string, orders map[string]T) {
	names := slices.Sorted(maps.Keys(orders))
	cmd.Flags().StringVar(to, "sort-by", "", "order by one of "+strings.Join(names, ", "))
	complete(cmd, "sort-by", names...)
}

func validateSort[T any](by string, orders map[string]T) error {
	if _, ok := orders[by]; by != "" && !ok {
		return cli.Usage(fmt.Errorf("--sort-by is %q: choose one of %s", by, strings.Join(slices.Sorted(maps.Keys(orders)), ", ")))
	}
	return nil
}
