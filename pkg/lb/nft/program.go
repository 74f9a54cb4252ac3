package nft

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
)

// maxName keeps names of chains and sets, which have a prefix and a digest, under the kernel's 256 characters.
const maxName = 200

// Program is what the kernel shall have, as data.
type Program struct {
	chains   map[string]*chain
	sets     map[string]*set
	counters map[string]bool
	// slots are the maps of slots to marks, by name.
	slots map[string]slotMap
	// targets are what marks stand for.
	targets map[uint32]string
}

func newProgram() *Program {
	return &Program{
		chains: map[string]*chain{}, sets: map[string]*set{}, counters: map[string]bool{},
		slots: map[string]slotMap{}, targets: map[uint32]string{},
	}
}

// chain is a list of rules.
type chain struct {
	name  string
	hook  *hook
	rules []rule
}

// hook makes a chain one that the kernel calls.
type hook struct {
	kind     nftables.ChainType
	number   *nftables.ChainHook
	priority *nftables.ChainPriority
}

// rule is one rule with the digest that tells it from others.
type rule struct {
	exprs  []expr.Any
	digest string
}

func newRule(exprs ...expr.Any) rule {
	h := sha256.New()
	for _, e := range exprs {
		b, err := expr.Marshal(unix.NFPROTO_INET, e)
		if err != nil {
			panic(fmt.Sprintf("nft: encoding %T: %v", e, err)) // they are all known
		}
		h.Write(b)
	}
	return rule{exprs, hex.EncodeToString(h.Sum(nil))[:digestLength]}
}

const digestLength = 12

// comment is how the kernel keeps the digest.
func (r rule) comment() []byte {
	return userdata.AppendString(nil, userdata.TypeComment, r.digest)
}

func digestOf(comment []byte) string {
	s, _ := userdata.GetString(comment, userdata.TypeComment)
	return s
}

// digests are those of the rules, in order.
func (c *chain) digests() []string {
	out := make([]string, len(c.rules))
	for i, r := range c.rules {
		out[i] = r.digest
	}
	return out
}

// set is a set or map whose elements never change, except those of the set that the kernel itself fills.
type set struct {
	nftables.Set
	elements []nftables.SetElement
}

// slotMap is one table of a stream: the mark of each slot, 0 for none.
type slotMap struct {
	marks []uint32
}

// add adds a chain whose name does not depend on what is in it.
func (p *Program) add(name string, h *hook, rules ...rule) {
	p.chains[name] = &chain{name: name, hook: h, rules: rules}
}

// addDigested adds a chain whose name tells its rules, and returns the name.
func (p *Program) addDigested(prefix string, rules ...rule) string {
	h := sha256.New()
	for _, r := range rules {
		h.Write([]byte(r.digest))
	}
	name := prefix + "." + hex.EncodeToString(h.Sum(nil))[:digestLength]
	p.add(name, nil, rules...)
	return name
}

// addSet adds a set whose name tells its elements, and returns the name.
func (p *Program) addSet(prefix string, s nftables.Set, elements []nftables.SetElement) string {
	h := sha256.New()
	for _, e := range elements {
		fmt.Fprintf(h, "%x %x %v %v\n", e.Key, e.Val, e.IntervalEnd, verdictOf(e))
	}
	s.Name = prefix + "." + hex.EncodeToString(h.Sum(nil))[:digestLength]
	p.sets[s.Name] = &set{s, elements}
	return s.Name
}

func verdictOf(e nftables.SetElement) string {
	if e.VerdictData == nil {
		return ""
	}
	return fmt.Sprint(e.VerdictData.Kind, e.VerdictData.Chain)
}

// counter names a counter, which lives as long as something uses the name.
func (p *Program) counter(name string) expr.Any {
	p.counters[name] = true
	return &expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: name}
}

// drop counts what it drops.
func (p *Program) drop(why string) rule {
	return newRule(p.counter("drop."+why), &expr.Verdict{Kind: expr.VerdictDrop})
}

func goTo(chain string) *expr.Verdict { return &expr.Verdict{Kind: expr.VerdictGoto, Chain: chain} }

// intervals are the elements of a set of ranges; verdict, if given, makes it a map.
func intervals(flat []span, verdict func(span) *expr.Verdict) []nftables.SetElement {
	var out []nftables.SetElement
	for _, s := range flat {
		e := nftables.SetElement{Key: []byte(s.lo)}
		if verdict != nil {
			e.VerdictData = verdict(s)
		}
		out = append(out, e)
		if s.hi != "" {
			out = append(out, nftables.SetElement{Key: []byte(s.hi), IntervalEnd: true})
		}
	}
	return out
}
