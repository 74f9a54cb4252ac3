package iface

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// plumb leads the kernel to what it shall have: the VIPs of the trenches that have a session.
func (c *Connector) plumb() error {
	c.plumbing.Lock()
	defer c.plumbing.Unlock()
	vips, partial := c.vips()
	if len(vips) == 0 {
		return c.lead(layout{}, partial)
	}
	p, err := c.plan()
	if err != nil {
		return err
	}
	on, err := c.kernel.addresses(p.secondary)
	if err != nil {
		return err
	}
	taken := slices.Clone(p.gateways)
	for _, a := range c.others(on) {
		taken = append(taken, a.Addr())
	}
	good, bad := usable(vips, taken)
	c.refuse(errors.Join(bad...))
	return c.lead(p.layout(good), partial)
}

// apply is plumb with another wish.
func (c *Connector) apply(want layout, partial bool) error {
	c.plumbing.Lock()
	defer c.plumbing.Unlock()
	return c.lead(want, partial)
}

// vips are those of all trenches in use; partial tells that there is one of which they are not known.
func (c *Connector) vips() (vips []netip.Prefix, partial bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	names := map[string]bool{}
	for k := range c.sessions {
		names[k.Trench] = true
	}
	for name := range names {
		if known := c.trenches[name].settings; known != nil {
			vips = append(vips, known.VIPs...)
		} else {
			partial = true
		}
	}
	return vips, partial
}

// others are the addresses that are no VIPs.
func (c *Connector) others(addrs []netip.Prefix) []netip.Prefix {
	vips, _ := c.vips()
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(addrs), func(p netip.Prefix) bool { return c.made[p] || slices.Contains(vips, p) })
}

func (c *Connector) plan() (plan, error) {
	p := plan{gateways: slices.Clone(c.cfg.Gateways), table: c.cfg.Table, priority: c.cfg.Priority}
	var errs [3]error
	p.secondary, errs[0] = c.kernel.link(c.cfg.Interface)
	p.vips, errs[1] = c.kernel.link(c.cfg.VIPLink)
	p.loopback, errs[2] = c.kernel.link("lo")
	return p, errors.Join(errs[:]...)
}

// refuse says once which VIPs are left out.
func (c *Connector) refuse(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	said := fmt.Sprint(err)
	if err != nil && said != c.refused {
		c.log.Error("VIPs are left out", "error", err)
	}
	c.refused = said
}

// lead makes the kernel's layout what is wanted. Each step is tried, whatever becomes of the others; the next call does what is left.
func (c *Connector) lead(want layout, partial bool) error {
	link, err := c.kernel.link(c.cfg.VIPLink)
	if err != nil {
		return err
	}
	have, err := c.kernel.read(link)
	if err != nil {
		return err
	}
	c.mu.Lock()
	todo := steps(have, want, c.made, partial)
	before := len(c.made)
	for _, s := range todo {
		if s.item.kind == address && !s.remove {
			c.made[s.item.prefix] = true
		}
	}
	if len(c.made) != before {
		c.save() // Before they are there, so that they go even after a crash.
	}
	c.mu.Unlock()
	var errs []error
	for _, s := range todo {
		errs = append(errs, c.kernel.apply(s))
	}
	if len(todo) > 0 {
		c.log.Info("the kernel was changed", "steps", len(todo), "error", errors.Join(errs...))
	}
	c.settle(have, want, todo, errs)
	return errors.Join(errs...)
}

// settle forgets the VIPs that are gone from the link, by this or by somebody else.
func (c *Connector) settle(have, want layout, todo []step, errs []error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	there := map[netip.Prefix]bool{}
	for _, l := range []layout{have, want} {
		for i := range l {
			if i.kind == address {
				there[i.prefix] = true
			}
		}
	}
	for i, s := range todo {
		if s.item.kind == address && s.remove && errs[i] == nil {
			delete(there, s.item.prefix)
		}
	}
	before := len(c.made)
	for p := range c.made {
		if !there[p] {
			delete(c.made, p)
		}
	}
	if len(c.made) != before {
		c.save()
	}
}
