package dns

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"time"

	"github.com/miekg/dns"
)

// maxHops is how many CNAMEs in a row are followed, as many as common resolvers follow.
const maxHops = 16

// udpSize is what the DNS flag day of 2020 settled on, to keep answers from being fragmented.
const udpSize = 1232

// query asks for the addresses of one family.
type query struct {
	name      string
	family    Family
	resolvers []string
	timeout   time.Duration
}

// run follows the chain of CNAMEs, as far as an answer has it, and asks again for where it ends otherwise. A name without
// addresses of the family is no error.
func (q query) run(ctx context.Context) (answer, error) {
	name, ttl := q.name, time.Duration(math.MaxInt64)
	for hops := 0; ; {
		message, err := q.ask(ctx, name)
		if err != nil {
			return answer{}, fmt.Errorf("%s: %w", q.family, err)
		}
		end, chainTTL, more := follow(message, name)
		ttl = min(ttl, chainTTL)
		addrs, addrTTL := addresses(message, end, q.family)
		if len(addrs) > 0 || end == name || message.Rcode == dns.RcodeNameError {
			return conclude(message, addrs, min(ttl, addrTTL))
		}
		if hops += more; hops > maxHops {
			return answer{}, fmt.Errorf("%s: %s is at the end of more than %d CNAMEs or of a loop", q.family, end, maxHops)
		}
		name = end
	}
}

// conclude knows what the resolver's code says of the last name of the chain (RFC 2308, section 2).
func conclude(message *dns.Msg, addrs []netip.Addr, ttl time.Duration) (answer, error) {
	if len(addrs) == 0 && message.Rcode == dns.RcodeNameError {
		return answer{}, errNotFound
	}
	return answer{addrs, ttl}, nil
}

// follow walks from name along the CNAMEs of the message: to where, the lowest TTL on the way, and how many.
func follow(message *dns.Msg, name string) (end string, ttl time.Duration, hops int) {
	next := make(map[string]*dns.CNAME)
	for _, rr := range message.Answer {
		if c, ok := rr.(*dns.CNAME); ok && next[dns.CanonicalName(c.Hdr.Name)] == nil {
			next[dns.CanonicalName(c.Hdr.Name)] = c
		}
	}
	ttl = math.MaxInt64
	for c := next[name]; c != nil && hops <= maxHops; c = next[name] {
		name = dns.CanonicalName(c.Target)
		ttl = min(ttl, seconds(c.Hdr.Ttl))
		hops++
	}
	return name, ttl, hops
}

// addresses are those of the name. Records of other names do not count, whoever put them there.
func addresses(message *dns.Msg, name string, family Family) (addrs []netip.Addr, ttl time.Duration) {
	ttl = math.MaxInt64
	for _, rr := range message.Answer {
		if dns.CanonicalName(rr.Header().Name) != name {
			continue
		}
		var ip net.IP
		switch rr := rr.(type) {
		case *dns.A:
			ip = rr.A.To4()
		case *dns.AAAA:
			ip = rr.AAAA
		}
		if addr, ok := netip.AddrFromSlice(ip); ok && rr.Header().Rrtype == uint16(family) {
			addrs = append(addrs, addr)
			ttl = min(ttl, seconds(rr.Header().Ttl))
		}
	}
	return addrs, ttl
}

// seconds takes a TTL with the highest bit set for 0 (RFC 2181, section 8).
func seconds(ttl uint32) time.Duration {
	if ttl > math.MaxInt32 {
		return 0
	}
	return time.Duration(ttl) * time.Second
}

// ask asks the resolvers in order until one answers: with the name's records, with none, or that it does not exist.
func (q query) ask(ctx context.Context, name string) (*dns.Msg, error) {
	var errs []error
	for _, resolver := range q.resolvers {
		message, err := q.exchange(ctx, resolver, name)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("resolver %s: %w", resolver, err))
		case message.Rcode != dns.RcodeSuccess && message.Rcode != dns.RcodeNameError:
			errs = append(errs, fmt.Errorf("resolver %s answers %s", resolver, dns.RcodeToString[message.Rcode]))
		default:
			return message, nil
		}
	}
	return nil, errors.Join(errs...)
}

// exchange asks by UDP, and by TCP if the answer is truncated or did not come.
func (q query) exchange(ctx context.Context, resolver, name string) (*dns.Msg, error) {
	message, err := q.once(ctx, "udp", resolver, name)
	if err == nil && !message.Truncated {
		return message, nil
	}
	over, tcpErr := q.once(ctx, "tcp", resolver, name)
	if tcpErr != nil {
		return nil, errors.Join(err, tcpErr)
	}
	return over, nil
}

func (q query) once(ctx context.Context, network, resolver, name string) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, q.timeout)
	defer cancel()
	question := new(dns.Msg).SetQuestion(name, uint16(q.family))
	question.SetEdns0(udpSize, false)
	client := &dns.Client{Net: network, Timeout: q.timeout, UDPSize: udpSize}
	message, _, err := client.ExchangeContext(ctx, question, resolver)
	if err != nil {
		return nil, fmt.Errorf("over %s: %w", network, err)
	}
	if !message.Response || len(message.Question) != 1 || message.Question[0].Qtype != uint16(q.family) ||
		dns.CanonicalName(message.Question[0].Name) != name {
		return nil, fmt.Errorf("over %s: answers another question", network)
	}
	return message, nil
}

// hostPort adds the port where there is none.
func hostPort(address, port string) string {
	if _, _, err := net.SplitHostPort(address); err == nil {
		return address
	}
	return net.JoinHostPort(address, port)
}

// HostPort completes the address of a resolver with DNS's port, 53. Brackets around an IPv6 address make no difference.
func HostPort(address string) string {
	if n := len(address); n > 2 && address[0] == '[' && address[n-1] == ']' {
		address = address[1 : n-1]
	}
	return hostPort(address, "53")
}
