package nft

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// rules are chains and sets, from a Program or from the kernel.
type rules interface {
	chain(name string) ([][]expr.Any, error)
	// find looks a key up. value is that of a map, which for verdicts is in VerdictData.
	find(set string, key []byte) (value nftables.SetElement, found bool, err error)
}

// machine runs rules on a packet as the kernel does, for the expressions that a Program consists of. Nothing is learned or counted.
type machine struct {
	rules   rules
	packet  headers
	memory  [64]byte
	verdict *expr.Verdict
	// see is told of what each expression did.
	see func(chain string, e expr.Any, m *machine)
	// found and slot are the last that a lookup and a hash had to say.
	found nftables.SetElement
	slot  uint32
}

// errBreak ends a rule that does not match.
var errBreak = errors.New("the rule does not match")

// limitOfSteps is more than any program takes.
const limitOfSteps = 100000

// run goes through chains, from one that is called by a hook, and returns the verdict.
func (m *machine) run(chain string) (expr.VerdictKind, error) {
	for range limitOfSteps {
		rules, err := m.rules.chain(chain)
		if err != nil {
			return 0, err
		}
		m.verdict = nil
		for _, r := range rules {
			if err := m.rule(chain, r); err != nil {
				return 0, fmt.Errorf("chain %s: %w", chain, err)
			}
			if m.verdict != nil {
				break
			}
		}
		switch {
		case m.verdict == nil:
			return expr.VerdictAccept, nil // the policy
		case m.verdict.Kind == expr.VerdictGoto:
			chain = m.verdict.Chain
		default:
			return m.verdict.Kind, nil
		}
	}
	return 0, fmt.Errorf("the rules go in circles")
}

func (m *machine) rule(chain string, exprs []expr.Any) error {
	m.memory = [64]byte{}
	for _, e := range exprs {
		err := m.step(e)
		if errors.Is(err, errBreak) {
			return nil
		}
		if err != nil {
			return err
		}
		if m.see != nil {
			m.see(chain, e, m)
		}
		if m.verdict != nil {
			return nil
		}
	}
	return nil
}

// at is a register. The kernel calls the first of four by another number.
func (m *machine) at(register, length uint32) []byte {
	offset := (register - firstRegister) * 4
	if register < firstRegister {
		offset = (register - 1) * 16
	}
	return m.memory[offset : offset+length]
}

// load fills whole registers.
func (m *machine) load(register uint32, value []byte) {
	clear(m.at(register, uint32(len(value)+3)/4*4))
	copy(m.at(register, uint32(len(value))), value)
}

func (m *machine) step(e expr.Any) error {
	switch e := e.(type) {
	case *expr.Meta:
		return m.meta(e)
	case *expr.Payload:
		return m.payload(e)
	case *expr.Cmp:
		if same := bytes.Equal(m.at(e.Register, uint32(len(e.Data))), e.Data); same != (e.Op == expr.CmpOpEq) {
			return errBreak
		}
	case *expr.Bitwise:
		value := bytes.Clone(m.at(e.SourceRegister, e.Len))
		for i := range value {
			value[i] = value[i]&e.Mask[i] ^ e.Xor[i]
		}
		m.load(e.DestRegister, value)
	case *expr.Immediate:
		m.load(e.Register, e.Data)
	case *expr.Hash:
		m.slot = slotOf(m.at(e.SourceRegister, e.Length), e.Seed, e.Modulus) + e.Offset
		m.load(e.DestRegister, binary.NativeEndian.AppendUint32(nil, m.slot))
	case *expr.Lookup:
		return m.lookup(e)
	case *expr.Verdict:
		m.verdict = e
	case *expr.Counter, *expr.Objref, *expr.Dynset:
	default:
		return fmt.Errorf("%T is no expression of this program", e)
	}
	return nil
}

func (m *machine) meta(e *expr.Meta) error {
	switch {
	case e.Key == expr.MetaKeyMARK && e.SourceRegister:
		m.packet.mark = binary.NativeEndian.Uint32(m.at(e.Register, 4))
	case e.Key == expr.MetaKeyMARK:
		m.load(e.Register, binary.NativeEndian.AppendUint32(nil, m.packet.mark))
	case e.Key == expr.MetaKeyNFPROTO:
		m.load(e.Register, []byte{m.packet.nfproto()})
	case e.Key == expr.MetaKeyL4PROTO:
		m.load(e.Register, []byte{m.packet.protocol})
	default:
		return fmt.Errorf("the meta key %d is none of this program", e.Key)
	}
	return nil
}

func (m *machine) payload(e *expr.Payload) error {
	header := m.packet.transport
	if e.Base == expr.PayloadBaseNetworkHeader {
		header = m.packet.network
	}
	if uint64(e.Offset)+uint64(e.Len) > uint64(len(header)) {
		return errBreak
	}
	if e.OperationType == expr.PayloadWrite {
		copy(header[e.Offset:], m.at(e.SourceRegister, e.Len))
		return nil
	}
	m.load(e.DestRegister, header[e.Offset:e.Offset+e.Len])
	return nil
}

func (m *machine) lookup(e *expr.Lookup) error {
	// The length of the key is the set's, so the whole memory from the register on is given.
	start := (e.SourceRegister - firstRegister) * 4
	if e.SourceRegister < firstRegister {
		start = (e.SourceRegister - 1) * 16
	}
	value, found, err := m.rules.find(e.SetName, m.memory[start:])
	if err != nil {
		return err
	}
	if found == e.Invert {
		return errBreak
	}
	m.found = value
	switch {
	case value.VerdictData != nil:
		m.verdict = value.VerdictData
	case len(value.Val) > 0 && e.DestRegister != 0:
		m.load(e.DestRegister, value.Val)
	}
	return nil
}

// findIn looks up the beginning of memory among the elements of a set.
func findIn(elements []nftables.SetElement, interval bool, memory []byte) (nftables.SetElement, bool) {
	var best *nftables.SetElement
	for i := range elements {
		e := &elements[i]
		key := memory[:min(len(e.Key), len(memory))]
		if !interval {
			if bytes.Equal(e.Key, key) {
				return *e, true
			}
			continue
		}
		// The last that begins at the key or before it decides; where one range ends another may begin.
		if bytes.Compare(e.Key, key) > 0 {
			continue
		}
		if best == nil || bytes.Compare(e.Key, best.Key) > 0 || bytes.Equal(e.Key, best.Key) && best.IntervalEnd {
			best = e
		}
	}
	if best == nil || best.IntervalEnd {
		return nftables.SetElement{}, false
	}
	return *best, true
}

// chain implements rules for a Program.
func (p *Program) chain(name string) ([][]expr.Any, error) {
	c := p.chains[name]
	if c == nil {
		return nil, fmt.Errorf("there is no chain %s", name)
	}
	out := make([][]expr.Any, len(c.rules))
	for i, r := range c.rules {
		out[i] = r.exprs
	}
	return out, nil
}

// find implements rules for a Program.
func (p *Program) find(name string, key []byte) (nftables.SetElement, bool, error) {
	number := binary.NativeEndian.Uint32(key)
	if m, ok := p.slots[name]; ok {
		if int(number) >= len(m.marks) || m.marks[number] == 0 {
			return nftables.SetElement{}, false, nil
		}
		return nftables.SetElement{Val: binary.NativeEndian.AppendUint32(nil, m.marks[number])}, true, nil
	}
	if name == setTargets {
		target, ok := p.targets[number]
		return nftables.SetElement{Comment: target}, ok, nil
	}
	s := p.sets[name]
	if s == nil {
		return nftables.SetElement{}, false, fmt.Errorf("there is no set %s", name)
	}
	e, found := findIn(s.elements, s.Interval, key)
	return e, found, nil
}
