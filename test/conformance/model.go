package conformance

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
)

// Model is a registry as plain as can be: what a server of nsp.v1 has to say, at one instant.
type Model struct {
	// Departing is false for the registry of Meridio 1.x, true for the one of this project.
	Departing bool
	// Timeout is how long an entry lives without a refresh.
	Timeout time.Duration
	// MaxTargets are by stream name; absent means 100.
	MaxTargets map[string]uint32
	// OneTrench is the only one of which registrations are taken; empty is all.
	OneTrench string

	// entries are in the order in which their keys were first stored.
	entries []entry
	// conduitOf and trenchOf are the one conduit of a stream name and the one trench of a conduit name that 1.x knows.
	conduitOf, trenchOf map[string]string
}

type entry struct {
	key      string
	target   *nspv1.Target
	deadline time.Duration
	// blocked is set where it is DISABLED only because another ENABLED target has its identifier.
	blocked bool
}

// Clone is a copy that changes no more.
func (m *Model) Clone() *Model {
	c := *m
	c.entries = slices.Clone(m.entries)
	c.conduitOf, c.trenchOf = maps.Clone(m.conduitOf), maps.Clone(m.trenchOf)
	return &c
}

// Register stores a target at an instant.
func (m *Model) Register(t *nspv1.Target, now time.Duration) codes.Code {
	if m.Departing && !m.acceptable(t) {
		return codes.InvalidArgument
	}
	if m.foreign(t) {
		return codes.PermissionDenied
	}
	e := entry{key: m.key(t), target: echo(t, m.Departing), deadline: now + m.Timeout}
	m.nameParents(e.target)
	i := m.find(e.key)
	if i < 0 {
		e.target.Status = nspv1.Target_DISABLED
		m.entries = append(m.entries, e)
		return codes.OK
	}
	e.blocked = e.target.GetStatus() == nspv1.Target_ENABLED
	m.settle(i, e)
	return codes.OK
}

func (m *Model) foreign(t *nspv1.Target) bool {
	trench := t.GetStream().GetConduit().GetTrench().GetName()
	return m.OneTrench != "" && trench != "" && trench != m.OneTrench
}

// settle stores an entry and decides, in this project's registry, who has an identifier: the first ENABLED target that asked.
func (m *Model) settle(i int, e entry) {
	if !m.Departing || e.target.GetType() != nspv1.Target_DEFAULT {
		e.blocked = false
	}
	m.entries[i] = e
	if e.blocked && m.taken(e) {
		m.setStatus(i, nspv1.Target_DISABLED)
	} else {
		m.entries[i].blocked = false
	}
	m.unblock()
}

// unblock enables, in their order, those whose identifier is free now.
func (m *Model) unblock() {
	for i, e := range m.entries {
		if e.blocked && !m.taken(e) {
			m.setStatus(i, nspv1.Target_ENABLED)
			m.entries[i].blocked = false
		}
	}
}

func (m *Model) setStatus(i int, s nspv1.Target_Status) {
	t := proto.CloneOf(m.entries[i].target)
	t.Status = s
	m.entries[i].target = t
}

// taken tells whether another ENABLED target of the stream has the entry's identifier.
func (m *Model) taken(e entry) bool {
	id, ok := m.identifier(e.target)
	return ok && slices.ContainsFunc(m.entries, func(o entry) bool {
		other, is := m.identifier(o.target)
		return is && other == id && o.key != e.key && o.target.GetStatus() == nspv1.Target_ENABLED &&
			o.target.GetType() == nspv1.Target_DEFAULT && streamName(o.target.GetStream()) == streamName(e.target.GetStream())
	})
}

// Unregister removes a target. What is not there is removed already.
func (m *Model) Unregister(t *nspv1.Target) codes.Code {
	if m.foreign(t) {
		return codes.PermissionDenied
	}
	if i := m.find(m.key(t)); i >= 0 {
		m.entries = slices.Delete(slices.Clone(m.entries), i, i+1)
	}
	m.unblock()
	return codes.OK
}

// Expire removes what has timed out, and tells whether that was anything.
func (m *Model) Expire(now time.Duration) bool {
	n := len(m.entries)
	m.entries = slices.DeleteFunc(slices.Clone(m.entries), func(e entry) bool { return e.deadline <= now })
	m.unblock()
	return len(m.entries) != n
}

// Renew gives every entry a full timeout, as a restart does.
func (m *Model) Renew(now time.Duration) {
	for i := range m.entries {
		m.entries[i].deadline = now + m.Timeout
	}
}

// NextDeadline is when the first entry times out.
func (m *Model) NextDeadline() (at time.Duration, ok bool) {
	for _, e := range m.entries {
		if !ok || e.deadline < at {
			at, ok = e.deadline, true
		}
	}
	return at, ok
}

// List is the answer to a filter.
func (m *Model) List(f *nspv1.Target) []*nspv1.Target {
	var out []*nspv1.Target
	for _, e := range m.entries {
		t := m.shown(e)
		if t == nil || f.GetType() != t.GetType() || !covers(f.GetStream(), t.GetStream()) {
			continue
		}
		if f.GetStatus() != nspv1.Target_ANY && f.GetStatus() != t.GetStatus() {
			continue
		}
		if m.Departing && f.GetStatus() == nspv1.Target_ENABLED && !m.active(t) {
			continue
		}
		out = append(out, t)
	}
	return out
}

// shown is the entry as lists have it: in 1.x a stream is in one conduit and a conduit in one trench, those named last.
func (m *Model) shown(e entry) *nspv1.Target {
	s := e.target.GetStream()
	if m.Departing {
		return e.target
	}
	if m.conduitOf[s.GetName()] != s.GetConduit().GetName() {
		return nil
	}
	t := echo(e.target, false)
	t.Status = e.target.GetStatus()
	t.Stream.Conduit.Trench.Name = m.trenchOf[s.GetConduit().GetName()]
	return t
}

func (m *Model) nameParents(t *nspv1.Target) {
	if m.conduitOf == nil {
		m.conduitOf, m.trenchOf = map[string]string{}, map[string]string{}
	}
	s := t.GetStream()
	m.conduitOf[s.GetName()] = s.GetConduit().GetName()
	m.trenchOf[s.GetConduit().GetName()] = s.GetConduit().GetTrench().GetName()
}

// active tells whether a load balancer is to use an ENABLED target: its identifier is one of the stream's.
func (m *Model) active(t *nspv1.Target) bool {
	_, ok := m.identifier(t)
	return ok || t.GetType() != nspv1.Target_DEFAULT
}

// identifier is the number of a target, where it has one of its stream's.
func (m *Model) identifier(t *nspv1.Target) (uint64, bool) {
	most := uint64(m.MaxTargets[t.GetStream().GetName()])
	if most == 0 {
		most = 100
	}
	id, err := strconv.ParseUint(t.GetContext()["identifier"], 10, 32)
	return id, err == nil && id > 0 && id <= most
}

func (m *Model) find(key string) int {
	return slices.IndexFunc(m.entries, func(e entry) bool { return e.key == key })
}

// key is what makes two targets one entry: in 1.x the list of addresses as written, here their set.
func (m *Model) key(t *nspv1.Target) string {
	ips := t.GetIps()
	if m.Departing {
		ips = nil
		for _, s := range t.GetIps() {
			if p, err := prefix(s); err == nil {
				s = p.String()
			}
			ips = append(ips, s)
		}
		slices.Sort(ips)
		ips = slices.Compact(ips)
	}
	return strings.Join(ips, ";") + "|" + t.GetType().String() + "|" + streamName(t.GetStream())
}

// acceptable tells whether this project stores such a target.
func (m *Model) acceptable(t *nspv1.Target) bool {
	s := t.GetStream()
	if t.GetType() != nspv1.Target_DEFAULT {
		return true
	}
	if s.GetName() == "" || s.GetConduit().GetName() == "" || s.GetConduit().GetTrench().GetName() == "" || len(t.GetIps()) == 0 {
		return false
	}
	for _, ip := range t.GetIps() {
		if _, err := prefix(ip); err != nil {
			return false
		}
	}
	return true
}

func prefix(s string) (netip.Prefix, error) {
	if strings.Contains(s, "/") {
		return netip.ParsePrefix(s)
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Prefix{}, err
	}
	return netip.PrefixFrom(a, a.BitLen()), nil
}

// echo is a target as lists show it: the stream is always there with its parents, and nothing else of them is kept. 1.x joins
// addresses by semicolons, and parts them so again.
func echo(t *nspv1.Target, departing bool) *nspv1.Target {
	ips := slices.Clone(t.GetIps())
	if !departing {
		ips = strings.Split(strings.Join(ips, ";"), ";")
	}
	s := t.GetStream()
	return &nspv1.Target{
		Ips: ips, Context: maps.Clone(t.GetContext()), Status: t.GetStatus(), Type: t.GetType(),
		Stream: Stream(s.GetConduit().GetTrench().GetName(), s.GetConduit().GetName(), s.GetName()),
	}
}

// Stream is a stream with its parents.
func Stream(trench, conduit, name string) *nspv1.Stream {
	return &nspv1.Stream{Name: name, Conduit: &nspv1.Conduit{Name: conduit, Trench: &nspv1.Trench{Name: trench}}}
}

func streamName(s *nspv1.Stream) string {
	return s.GetConduit().GetTrench().GetName() + "/" + s.GetConduit().GetName() + "/" + s.GetName()
}

// covers tells whether a filter's stream matches; a name that is absent or empty matches all.
func covers(f, s *nspv1.Stream) bool {
	match := func(want, have string) bool { return want == "" || want == have }
	return match(f.GetName(), s.GetName()) && match(f.GetConduit().GetName(), s.GetConduit().GetName()) &&
		match(f.GetConduit().GetTrench().GetName(), s.GetConduit().GetTrench().GetName())
}

// render writes a list so that equal lists, and only those, look equal.
func render(list []*nspv1.Target) string {
	var b strings.Builder
	for _, t := range list {
		fmt.Fprintf(&b, "%q %v %v %s of %s", t.GetIps(), t.GetStatus(), t.GetType(), renderContext(t.GetContext()), streamName(t.GetStream()))
		if s := t.GetStream(); s == nil || s.GetConduit() == nil || s.GetConduit().GetTrench() == nil {
			b.WriteString(" with a parent missing")
		}
		if t.GetStream().GetMaxTargets() != 0 || len(t.GetStream().GetConduit().GetDestinationPortNats()) != 0 {
			b.WriteString(" with more")
		}
		b.WriteString("\n")
	}
	return b.String()
}

func renderContext(c map[string]string) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(c)) {
		fmt.Fprintf(&b, "%q=%q ", k, c[k])
	}
	return b.String()
}

// Clear forgets all.
func (m *Model) Clear() { m.entries, m.conduitOf, m.trenchOf = nil, nil, nil }
