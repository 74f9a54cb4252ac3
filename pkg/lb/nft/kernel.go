package nft

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	mdnetlink "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// An attribute has at most 64 KiB, and the kernel says ENOENT to what is cut there: a slot takes 28 bytes, a verdict the name of its chain.
const (
	slotsPerMessage    = 1000
	elementsPerMessage = 100
)

// socketBuffer takes the largest transaction and its acknowledgements.
const socketBuffer = 64 << 20

// kernel is the table of the load balancer in one network namespace. It is used by one goroutine at a time.
type kernel struct {
	table *nftables.Table
	netns int
	// writer is the connection for transactions. It stays open: when it is closed the kernel first does what it had put off after the last
	// transaction, which takes it longer than a transaction.
	writer *nftables.Conn
}

// open makes a connection, which belongs to the caller.
func (k *kernel) open() (*nftables.Conn, error) {
	conn, err := nftables.New(nftables.AsLasting(), nftables.WithNetNSFd(k.netns), nftables.WithSockOptions(forceBuffers))
	if err != nil {
		return nil, fmt.Errorf("opening a connection to nftables: %w", err)
	}
	return conn, nil
}

// forceBuffers passes the limits of the system, which needs CAP_NET_ADMIN, as all here does.
func forceBuffers(c *mdnetlink.Conn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		set = errors.Join(
			unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, socketBuffer),
			unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, socketBuffer))
	})
	return errors.Join(err, set)
}

// batch is a transaction on its way to the kernel.
type batch struct {
	conn  *nftables.Conn
	table *nftables.Table
}

// commit has the kernel take all steps, or none and an error.
func (k *kernel) commit(steps []step) (err error) {
	if k.writer == nil {
		if k.writer, err = k.open(); err != nil {
			return err
		}
	}
	defer func() {
		if err != nil { // answers may be left in the connection
			k.close()
		}
	}()
	b := &batch{k.writer, k.table}
	for _, s := range steps {
		if err := s.on(b); err != nil {
			return fmt.Errorf("writing a transaction: %w", err)
		}
	}
	if err := k.writer.Flush(); err != nil {
		return fmt.Errorf("committing a transaction of %d steps: %w", len(steps), err)
	}
	return nil
}

func (k *kernel) close() {
	if k.writer != nil {
		_ = k.writer.CloseLasting()
		k.writer = nil
	}
}

func (addTable) on(b *batch) error {
	b.conn.AddTable(b.table)
	return nil
}

func (s addCounter) on(b *batch) error {
	b.conn.AddObj(&nftables.CounterObj{Table: b.table, Name: s.name})
	return nil
}

func (s delCounter) on(b *batch) error {
	b.conn.DeleteObject(&nftables.CounterObj{Table: b.table, Name: s.name})
	return nil
}

func (s addSet) on(b *batch) error { return b.conn.AddSet(b.of(s.set), nil) }

func (s delSet) on(b *batch) error {
	b.conn.DelSet(&nftables.Set{Table: b.table, Name: s.name})
	return nil
}

func (s addChain) on(b *batch) error {
	c := &nftables.Chain{Table: b.table, Name: s.name}
	if s.hook != nil {
		c.Type, c.Hooknum, c.Priority = s.hook.kind, s.hook.number, s.hook.priority
	}
	b.conn.AddChain(c)
	return nil
}

func (s flushChain) on(b *batch) error {
	b.conn.FlushChain(b.chain(s.name))
	return nil
}

func (s delChain) on(b *batch) error {
	b.conn.DelChain(b.chain(s.name))
	return nil
}

func (s addRules) on(b *batch) error {
	for _, r := range s.chain.rules {
		b.conn.AddRule(&nftables.Rule{Table: b.table, Chain: b.chain(s.chain.name), Exprs: r.exprs, UserData: r.comment()})
	}
	return nil
}

func (s addElements) on(b *batch) error {
	for chunk := range slices.Chunk(s.elements, elementsPerMessage) {
		if err := b.conn.SetAddElements(b.of(s.set), chunk); err != nil {
			return err
		}
	}
	return nil
}

func (s delElements) on(b *batch) error {
	for chunk := range slices.Chunk(s.elements, elementsPerMessage) {
		if err := b.conn.SetDeleteElements(b.of(s.set), chunk); err != nil {
			return err
		}
	}
	return nil
}

// Adding what exists is an error, so all that changes is deleted first.
func (s setSlots) on(b *batch) error {
	var gone, come []nftables.SetElement
	for i, slot := range s.slots {
		key := binaryutil.NativeEndian.PutUint32(uint32(slot))
		if s.old[i] != 0 {
			gone = append(gone, nftables.SetElement{Key: key})
		}
		if s.marks[i] != 0 {
			come = append(come, nftables.SetElement{Key: key, Val: binaryutil.NativeEndian.PutUint32(s.marks[i])})
		}
	}
	for chunk := range slices.Chunk(gone, slotsPerMessage) {
		if err := b.conn.SetDeleteElements(b.of(s.set), chunk); err != nil {
			return err
		}
	}
	for chunk := range slices.Chunk(come, slotsPerMessage) {
		if err := b.conn.SetAddElements(b.of(s.set), chunk); err != nil {
			return err
		}
	}
	return nil
}

func (b *batch) of(s nftables.Set) *nftables.Set {
	s.Table = b.table
	return &s
}

func (b *batch) chain(name string) *nftables.Chain {
	return &nftables.Chain{Table: b.table, Name: name}
}

// remove takes away the whole table.
func (k *kernel) remove() error {
	conn, err := k.open()
	if err != nil {
		return err
	}
	defer func() { _ = conn.CloseLasting() }()
	if exists, err := k.exists(conn); err != nil || !exists {
		return err
	}
	conn.DelTable(k.table)
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("deleting the table %s: %w", k.table.Name, err)
	}
	return nil
}

func (k *kernel) exists(conn *nftables.Conn) (bool, error) {
	tables, err := conn.ListTablesOfFamily(k.table.Family)
	if err != nil {
		return false, fmt.Errorf("listing tables: %w", err)
	}
	return slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == k.table.Name }), nil
}

// read is the state that the kernel has.
func (k *kernel) read() (*state, error) {
	s := newState()
	conn, err := k.open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.CloseLasting() }()
	if s.table, err = k.exists(conn); err != nil || !s.table {
		return s, err
	}
	if err := errors.Join(k.readChains(conn, s), k.readSets(conn, s), k.readCounters(conn, s)); err != nil {
		return nil, fmt.Errorf("reading the table %s: %w", k.table.Name, err)
	}
	return s, nil
}

func (k *kernel) readChains(conn *nftables.Conn, s *state) error {
	chains, err := k.chains(conn)
	if err != nil {
		return err
	}
	for _, c := range chains {
		rules, err := conn.GetRules(k.table, c)
		if err != nil {
			return fmt.Errorf("chain %s: %w", c.Name, err)
		}
		digests := make([]string, len(rules))
		for i, r := range rules {
			digests[i] = digestOf(r.UserData)
		}
		s.chains[c.Name] = digests
	}
	return nil
}

func (k *kernel) chains(conn *nftables.Conn) ([]*nftables.Chain, error) {
	all, err := conn.ListChainsOfTableFamily(k.table.Family)
	if err != nil {
		return nil, fmt.Errorf("listing chains: %w", err)
	}
	return slices.DeleteFunc(all, func(c *nftables.Chain) bool { return c.Table.Name != k.table.Name }), nil
}

func (k *kernel) readSets(conn *nftables.Conn, s *state) error {
	sets, err := conn.GetSets(k.table)
	if err != nil {
		return fmt.Errorf("listing sets: %w", err)
	}
	for _, set := range sets {
		size, isSlots := slotsSize(set.Name)
		if !isSlots && set.Name != setTargets {
			s.sets[set.Name] = true
			continue
		}
		elements, err := conn.GetSetElements(set)
		if err != nil {
			return fmt.Errorf("set %s: %w", set.Name, err)
		}
		if isSlots {
			s.slots[set.Name] = marksOf(elements, size)
			continue
		}
		s.sets[set.Name] = true
		for _, e := range elements {
			s.targets[binaryutil.NativeEndian.Uint32(e.Key)] = e.Comment
		}
	}
	return nil
}

func marksOf(elements []nftables.SetElement, size int) []uint32 {
	marks := make([]uint32, size)
	for _, e := range elements {
		if slot := binaryutil.NativeEndian.Uint32(e.Key); int(slot) < size {
			marks[slot] = binaryutil.NativeEndian.Uint32(e.Val)
		}
	}
	return marks
}

func (k *kernel) readCounters(conn *nftables.Conn, s *state) error {
	counters, err := k.counters(conn)
	for name := range counters {
		s.counters[name] = true
	}
	return err
}

// Count is what a counter has seen.
type Count struct{ Packets, Bytes uint64 }

func (k *kernel) counters(conn *nftables.Conn) (map[string]Count, error) {
	objects, err := conn.GetObjects(k.table)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("listing counters: %w", err)
	}
	out := map[string]Count{}
	for _, o := range objects {
		if c, ok := o.(*nftables.CounterObj); ok {
			out[c.Name] = Count{c.Packets, c.Bytes}
		}
	}
	return out, nil
}

// targetCounts are the packets of each target, by name.
func (k *kernel) targetCounts(conn *nftables.Conn) (map[string]Count, error) {
	elements, err := conn.GetSetElements(&nftables.Set{Table: k.table, Name: setTargets})
	if err != nil {
		return nil, fmt.Errorf("listing targets: %w", err)
	}
	out := map[string]Count{}
	for _, e := range elements {
		c := cmpOr(e.Counter)
		out[e.Comment] = Count{c.Packets, c.Bytes}
	}
	return out, nil
}

func cmpOr(c *expr.Counter) expr.Counter {
	if c == nil {
		return expr.Counter{}
	}
	return *c
}
