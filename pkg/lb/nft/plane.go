package nft

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// Defaults of Config.
const (
	DefaultTable         = "meridio-lb"
	DefaultMarkBase      = 0x6d000000
	DefaultRulePriority  = 1000
	DefaultLearnDuration = 15 * time.Minute
	DefaultLinger        = time.Second
)

// maxMarks is how many targets there can be, in all streams.
const maxMarks = 1 << 16

// Config says where the data plane is.
type Config struct {
	// Table is the nftables table, of family inet, that belongs to the load balancer alone.
	Table string
	// MarkBase is the first of 65,536 numbers that mark packets and name routing tables.
	MarkBase uint32
	// RulePriority is the first of 8,194 that rules from marks to tables can have.
	RulePriority int
	// LearnDuration is how long a silent connection is remembered that began while targets drained.
	LearnDuration time.Duration
	// Linger is how long what is not wanted any more stays in the kernel: packets that have passed half of it find the other half.
	Linger time.Duration
	// Netns is an open network namespace; 0 is that of the process.
	Netns int
	// Log defaults to slog.Default().
	Log *slog.Logger
}

// Plane brings the kernel to what is desired. It is used by one goroutine at a time, but for Counters.
type Plane struct {
	cfg      Config
	kernel   tables
	router   routes
	compiler compiler

	// What the kernel has; nil where that is not known.
	state *state
	hops  *hops
	// instances are those that targets had when their neighbours were last asked for.
	instances map[string]string
	// left is since when the kernel has things that are not wanted any more.
	left map[string]time.Time
	// Of the present Apply: its time, and what it found that is not wanted.
	now      time.Time
	unwanted map[string]bool
}

// tables is the kernel's side of nftables.
type tables interface {
	read() (*state, error)
	commit(steps []step) error
	remove() error
	close()
}

// routes is the kernel's side of rules, routes and neighbours.
type routes interface {
	read() (*hops, error)
	ensure(h *hops, k hop, via netip.Addr) error
	remove(h *hops, k hop) error
	tidy(h *hops) error
	forget(a netip.Addr) error
	close()
}

// TargetRef names a target.
type TargetRef struct {
	Stream     string
	Identifier uint32
}

// Result is what became of a desired state.
type Result struct {
	// Refused are the flows and others that cannot be programmed, and why. The others are.
	Refused Refused
	// Pending are targets that get no packets of a family that they have an address of, because no link leads there yet.
	Pending []TargetRef
	// Changed says that the kernel took a transaction.
	Changed bool
	// Again is after how long Apply shall be called again to clear up; 0 where there is nothing left.
	Again time.Duration
}

// New makes a Plane. It does not change anything yet.
func New(cfg Config) (*Plane, error) {
	cfg.Table = cmp.Or(cfg.Table, DefaultTable)
	cfg.MarkBase = cmp.Or(cfg.MarkBase, DefaultMarkBase)
	cfg.RulePriority = cmp.Or(cfg.RulePriority, DefaultRulePriority)
	cfg.LearnDuration = cmp.Or(cfg.LearnDuration, DefaultLearnDuration)
	cfg.Linger = cmp.Or(cfg.Linger, DefaultLinger)
	cfg.Log = cmp.Or(cfg.Log, slog.Default())
	if cfg.MarkBase > 1<<31-maxMarks || cfg.MarkBase%groupSize != 0 || cfg.MarkBase == 0 {
		return nil, fmt.Errorf("the first mark %#x is not a multiple of %d from %[2]d to %#x", cfg.MarkBase, groupSize, uint32(1<<31-maxMarks))
	}
	p := &Plane{cfg: cfg, compiler: compiler{learn: cfg.LearnDuration}, instances: map[string]string{}, left: map[string]time.Time{}}
	var err error
	if p.router, err = newRouter(cfg.Netns, cfg.RulePriority, cfg.MarkBase, p.owns); err != nil {
		return nil, err
	}
	p.kernel = newKernel(cfg)
	return p, nil
}

func newKernel(cfg Config) *kernel {
	return &kernel{table: &nftables.Table{Name: cfg.Table, Family: nftables.TableFamilyINet}, netns: cfg.Netns}
}

// Close lets go of the kernel, which keeps forwarding.
func (p *Plane) Close() {
	p.kernel.close()
	p.router.close()
}

func (p *Plane) owns(mark uint32) bool {
	return mark >= p.cfg.MarkBase && mark < p.cfg.MarkBase+maxMarks
}

// Refresh has the next Apply look at the routes of the kernel again: a link or an address has changed.
func (p *Plane) Refresh() { p.hops = nil }

// Audit has the next Apply look at everything again, and mend what somebody else has changed.
func (p *Plane) Audit() { p.hops, p.state = nil, nil }

// Apply brings the kernel to the desired state, or as far as it can. After an error the kernel is in the old state or in the new one,
// never in between, and Apply can be called again.
func (p *Plane) Apply(desired *Desired) (Result, error) {
	p.now, p.unwanted = time.Now(), map[string]bool{}
	if err := p.look(); err != nil {
		return Result{}, err
	}
	marks, err := p.assign(desired)
	if err != nil {
		return Result{}, err
	}
	shares, pending, ways, errs := p.lead(desired, marks)
	result := Result{Pending: pending}
	refused, changed, err := p.program(desired, shares, marks)
	result.Refused, result.Changed = refused, changed
	if err != nil {
		return result, errors.Join(append(errs, err)...)
	}
	errs = append(errs, p.leave(ways)...)
	result.Again = p.tidy()
	return result, errors.Join(errs...)
}

// old says whether a thing has not been wanted for long enough to go.
func (p *Plane) old(thing string) bool {
	p.unwanted[thing] = true
	if p.left[thing].IsZero() {
		p.left[thing] = p.now
	}
	return p.now.Sub(p.left[thing]) >= p.cfg.Linger
}

// tidy forgets what has gone or is wanted again, and says when the last of the others is to go.
func (p *Plane) tidy() (again time.Duration) {
	for thing, since := range p.left {
		if !p.unwanted[thing] {
			delete(p.left, thing)
		} else {
			again = max(again, p.cfg.Linger-p.now.Sub(since))
		}
	}
	return again
}

// look reads what the kernel has, where that is not known.
func (p *Plane) look() (err error) {
	if p.state == nil {
		if p.state, err = p.kernel.read(); err != nil {
			return err
		}
	}
	if p.hops == nil {
		p.hops, err = p.router.read()
	}
	return err
}

// assign gives each target the mark that it has in the kernel, or one that is not in use there.
func (p *Plane) assign(desired *Desired) (map[string]uint32, error) {
	has := make(map[string]uint32, len(p.state.targets))
	for mark, name := range p.state.targets {
		if p.owns(mark) {
			has[name] = mark
		}
	}
	taken := map[uint32]bool{}
	for mark := range p.state.targets {
		taken[mark] = true
	}
	for k := range p.hops.all() {
		taken[k.mark] = true
	}
	marks := map[string]uint32{}
	next := p.cfg.MarkBase
	for _, s := range desired.Streams {
		for _, t := range s.Targets {
			name := targetName(s.Name, t.Identifier)
			if mark, ok := has[name]; ok {
				marks[name] = mark
				continue
			}
			for taken[next] {
				next++
			}
			if !p.owns(next) {
				return nil, fmt.Errorf("there are more than %d targets", maxMarks)
			}
			marks[name], taken[next] = next, true
		}
	}
	return marks, nil
}

// lead makes the ways to all targets. It returns who can be reached.
func (p *Plane) lead(desired *Desired, marks map[string]uint32) (
	shares map[string]map[family]share, pending []TargetRef, ways map[hop]bool, errs []error,
) {
	shares, ways = map[string]map[family]share{}, map[hop]bool{}
	for _, s := range desired.Streams {
		of := map[family]share{}
		for _, t := range s.Targets {
			name, reached := targetName(s.Name, t.Identifier), true
			for _, f := range families {
				via, ok := t.address(f)
				if !ok {
					continue
				}
				k := hop{marks[name], f}
				ways[k] = true
				switch err := p.router.ensure(p.hops, k, via); {
				case errors.Is(err, errPending):
					reached = false
				case err != nil:
					reached = false
					p.hops = p.hops.unknown(k)
					errs = append(errs, fmt.Errorf("target %s: %w", name, err))
				default:
					of[f] = of[f].with(t)
				}
			}
			if !reached {
				pending = append(pending, TargetRef{s.Name, t.Identifier})
			}
			if err := p.meet(name, marks[name], t); err != nil {
				errs = append(errs, err)
			}
		}
		shares[s.Name] = of
	}
	p.forgetInstances(marks)
	return shares, pending, ways, errs
}

// unknown has a way be made again, whatever of it is there.
func (h *hops) unknown(k hop) *hops {
	delete(h.via, k)
	delete(h.blackhole, k)
	return h
}

func (s share) with(t Target) share {
	if t.Draining {
		s.draining = append(s.draining, t.Identifier)
	} else {
		s.active = append(s.active, t.Identifier)
	}
	return s
}

// meet forgets the link addresses of a target that is another machine than before, until that succeeds. The first time that this process
// sees it, it may be the one that the kernel knows already.
func (p *Plane) meet(name string, mark uint32, t Target) error {
	instance := t.Instance + " " + fmt.Sprint(t.Addresses)
	was, seen := p.instances[name]
	if was == instance {
		return nil
	}
	var errs []error
	if seen || p.state.targets[mark] != name {
		for _, a := range t.Addresses {
			errs = append(errs, p.router.forget(a.Unmap()))
		}
	}
	err := errors.Join(errs...)
	if err == nil {
		p.instances[name] = instance
	}
	return err
}

// forgetInstances drops those of targets that are gone from the kernel too: until then one that comes back may be another machine.
func (p *Plane) forgetInstances(marks map[string]uint32) {
	there := make(map[string]bool, len(p.state.targets))
	for _, name := range p.state.targets {
		there[name] = true
	}
	maps.DeleteFunc(p.instances, func(name string, _ string) bool {
		_, ok := marks[name]
		return !ok && !there[name]
	})
}

// program compiles and commits. Where the kernel refuses what compiles, the flows that it refuses by themselves are left out.
func (p *Plane) program(desired *Desired, shares map[string]map[family]share, marks map[string]uint32) (Refused, bool, error) {
	mark := func(stream string, id uint32) uint32 { return marks[targetName(stream, id)] }
	program, refused := p.compiler.compile(desired, shares, mark)
	changed, err := p.commit(program)
	if err == nil || !isRefusal(err) {
		return refused, changed, err
	}
	bad := p.suspects(desired)
	if len(bad) == 0 || p.look() != nil {
		return refused, false, err
	}
	without := *desired
	without.Flows = slices.DeleteFunc(slices.Clone(desired.Flows), func(f Flow) bool { return bad["flow "+f.Name] != nil })
	program, refused = p.compiler.compile(&without, shares, mark)
	maps.Copy(refused, bad)
	changed, err = p.commit(program)
	return refused, changed, err
}

func (p *Plane) commit(program *Program) (changed bool, err error) {
	c := difference(p.state, program, p.old)
	for _, steps := range [][]step{c.prepare, c.turn} {
		if len(steps) == 0 {
			continue
		}
		if err := p.kernel.commit(steps); err != nil {
			p.state = nil
			return false, err
		}
		changed = true
	}
	p.state = c.after
	return changed, nil
}

// isRefusal tells what the kernel will never take from what it cannot take now.
func isRefusal(err error) bool {
	for _, e := range []error{unix.EINVAL, unix.EOPNOTSUPP, unix.ENOENT, unix.ERANGE, unix.E2BIG, unix.EEXIST, unix.ELOOP, unix.EMLINK, unix.ENAMETOOLONG} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// suspects are the flows that the kernel refuses by themselves, tried in a table without hooks, which no packet passes.
func (p *Plane) suspects(desired *Desired) Refused {
	cfg := p.cfg
	cfg.Table += "-probe"
	probe := newKernel(cfg)
	defer probe.close()
	bad := Refused{}
	for _, f := range desired.Flows {
		one := &Desired{VIPs: f.VIPs, Streams: []Stream{{Name: f.Stream}}, Flows: []Flow{f}}
		c := compiler{learn: p.cfg.LearnDuration}
		program, refused := c.compile(one, nil, func(string, uint32) uint32 { return 0 })
		if len(refused) > 0 {
			continue // that is known already
		}
		for _, chain := range program.chains {
			chain.hook = nil
		}
		all := difference(newState(), program, func(string) bool { return true })
		if err := errors.Join(probe.remove(), probe.commit(slices.Concat(all.prepare, all.turn))); err != nil && isRefusal(err) {
			bad["flow "+f.Name] = err
		}
	}
	if err := probe.remove(); err != nil {
		p.cfg.Log.Warn("the table for probing flows was not removed", "error", err)
	}
	return bad
}

// leave takes away the ways that lead to no target. What fails is tried again by the next Apply, as it is still listed.
func (p *Plane) leave(ways map[hop]bool) (errs []error) {
	for k := range p.hops.all() {
		if ways[k] || !p.old(fmt.Sprint("way ", k)) {
			continue
		}
		if err := p.router.remove(p.hops, k); err != nil {
			errs = append(errs, err)
		}
	}
	if err := p.router.tidy(p.hops); err != nil {
		errs = append(errs, err)
	}
	if len(errs) > 0 {
		p.hops = nil
	}
	return errs
}

// Remove takes everything away that the load balancer has in the kernel.
func (p *Plane) Remove() error {
	errs := []error{p.kernel.remove()}
	p.Audit()
	hops, err := p.router.read()
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	for k := range hops.all() {
		errs = append(errs, p.router.remove(hops, k))
	}
	errs = append(errs, p.router.tidy(hops))
	return errors.Join(errs...)
}

// Via is the next hop of each target's mark, for those who look from outside.
func (h *hops) nextHop(mark uint32, f family) (netip.Addr, bool) {
	via, ok := h.via[hop{mark, f}]
	return via, ok
}
