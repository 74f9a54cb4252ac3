package v1alpha1

// accepted are specs that the API server takes, by kind.
var accepted = map[string][]string{
	"TargetGrant": {
		`
from: [{namespace: apps}]
to: [{trench: trench-a}]`, `
from:
- {namespace: apps, serviceAccounts: [web, db.x]}
- {namespace: apps, externalTargets: ["*"]}
to:
- {trench: trench-a, conduit: lb_fe.1}
- {trench: Trench-B, conduit: lb, stream: s1}`,
	},
	"ExternalTarget": {
		`source: {addresses: {ips: [192.0.2.1, "2001:db8::1"]}}`,
		`source: {addresses: {ips: [192.0.2.1], health: {tcp: {port: 22}, interval: 500ms, timeout: 100ms, upAfter: 2}}}`,
		`source: {addresses: {ips: [192.0.2.1], health: {http: {port: 80, path: "/live?x=1", host: "a.b:80", scheme: HTTPS}}}}`,
		`source: {addresses: {ips: [192.0.2.1], health: {grpc: {port: 80, service: db}}}}`,
		`source: {dns: {name: db.example.com.}}`,
		`source: {dns: {name: _srv.db, families: [IPv6], resolvers: [192.0.2.53, "192.0.2.53:5353", "2001:db8::53", "[2001:db8::53]:53"], maxStale: 0s}}`,
		`source: {kubernetes: {kubeconfigSecret: {name: east}, namespace: apps, service: web}}`,
		`source: {kubernetes: {cluster: east-1.example, kubeconfigSecret: {name: east}, namespace: apps, service: web}}`,
		`
source: {provider: {name: azure, locator: /subscriptions/e3f0/resourceGroups/mesh-rg/providers/Microsoft.Compute/virtualMachineScaleSets/baz}}
ports: [{name: http, port: 8080}, {name: dns, port: 53, protocol: UDP}]
identity: {spiffeID: "spiffe://example.org/vm/baz"}`, `
source: {addresses: {ips: [192.0.2.1]}}
identity: {x509: {caConfigMap: {name: vm-ca}, subject: vm-1.example.com}}`,
	},
	"TargetPool": {
		`
stream: {trench: trench-a, conduit: conduit-a, stream: stream-a}
selector: {app: web}`, `
stream: {namespace: red, trench: trench-a, conduit: conduit-a, stream: stream-a}
selector: {app.kubernetes.io/name: web, tier: ""}
assignment: ready
draining: keep
panicThreshold: 0`,
	},
	"StreamPolicy": {`
stream: {trench: trench-a, conduit: conduit-a, stream: stream-a}
sources:
- cidr: 192.0.2.0/24
- cidr: 2001:db8::/32
- service: {name: web, namespace: apps}
- externalTarget: {name: vm}`,
	},
}

type refusal struct{ spec, says string }

// refused are specs that it does not take, and what it complains about.
var refused = map[string]map[string]refusal{
	"TargetGrant": {
		"nobody":           {"{from: [], to: [{trench: a}]}", "spec.from"},
		"nothing":          {"{from: [{namespace: apps}], to: []}", "spec.to"},
		"no namespace":     {"{from: [{serviceAccounts: [a]}], to: [{trench: a}]}", "namespace"},
		"bad namespace":    {"{from: [{namespace: Apps}], to: [{trench: a}]}", "namespace"},
		"all namespaces":   {"{from: [{namespace: '*'}], to: [{trench: a}]}", "namespace"},
		"bad trench":       {"{from: [{namespace: apps}], to: [{trench: a/b}]}", "trench"},
		"no trench":        {"{from: [{namespace: apps}], to: [{conduit: a}]}", "trench"},
		"stream alone":     {"{from: [{namespace: apps}], to: [{trench: a, stream: s}]}", "together with its conduit"},
		"star and name":    {"{from: [{namespace: apps, serviceAccounts: ['*', a]}], to: [{trench: a}]}", "must be the only one"},
		"star and target":  {"{from: [{namespace: apps, externalTargets: [a, '*']}], to: [{trench: a}]}", "must be the only one"},
		"no account":       {"{from: [{namespace: apps, serviceAccounts: []}], to: [{trench: a}]}", "serviceAccounts"},
		"account twice":    {"{from: [{namespace: apps, serviceAccounts: [a, a]}], to: [{trench: a}]}", "Duplicate"},
		"bad account":      {"{from: [{namespace: apps, serviceAccounts: [a*]}], to: [{trench: a}]}", "serviceAccounts"},
		"unknown field":    {"{from: [{namespace: apps, pods: [a]}], to: [{trench: a}]}", "unknown field"},
		"overlong trench":  {"{from: [{namespace: apps}], to: [{trench: a234567890123456789012345678901234567890123456789012345678901234}]}", "trench"},
		"no spec of trust": {"{}", "spec.from"},
	},
	"ExternalTarget": {
		"no source":            {"source: {}", "exactly one of"},
		"two sources":          {"source: {addresses: {ips: [192.0.2.1]}, dns: {name: a.b}}", "exactly one of"},
		"no address":           {"source: {addresses: {ips: []}}", "ips"},
		"not an address":       {"source: {addresses: {ips: [a.b]}}", "IP address"},
		"leading zeros":        {"source: {addresses: {ips: [192.0.02.1]}}", "IP address"},
		"not canonical":        {"source: {addresses: {ips: ['2001:DB8::1']}}", "canonical"},
		"mapped":               {"source: {addresses: {ips: ['::ffff:192.0.2.1']}}", "IP address"},
		"zone":                 {"source: {addresses: {ips: ['fe80::1%eth0']}}", "IP address"},
		"loopback":             {"source: {addresses: {ips: [127.0.0.1]}}", "loopback"},
		"loopback v6":          {"source: {addresses: {ips: ['::1']}}", "loopback"},
		"unspecified":          {"source: {addresses: {ips: [0.0.0.0]}}", "unspecified"},
		"metadata service":     {"source: {addresses: {ips: [169.254.169.254]}}", "link-local"},
		"multicast":            {"source: {addresses: {ips: [224.0.0.251]}}", "link-local"},
		"wide multicast":       {"source: {addresses: {ips: [239.1.2.3]}}", "unicast"},
		"broadcast":            {"source: {addresses: {ips: [255.255.255.255]}}", "unicast"},
		"address twice":        {"source: {addresses: {ips: [192.0.2.1, 192.0.2.1]}}", "Duplicate"},
		"two probes":           {"source: {addresses: {ips: [192.0.2.1], health: {tcp: {port: 1}, grpc: {port: 1}}}}", "exactly one of tcp"},
		"no probe":             {"source: {addresses: {ips: [192.0.2.1], health: {interval: 1s}}}", "exactly one of tcp"},
		"slow probe":           {"source: {addresses: {ips: [192.0.2.1], health: {tcp: {port: 1}, interval: 1s, timeout: 2s}}}", "longer than interval"},
		"furious probe":        {"source: {addresses: {ips: [192.0.2.1], health: {tcp: {port: 1}, interval: 1ms}}}", "100ms"},
		"no duration":          {"source: {addresses: {ips: [192.0.2.1], health: {tcp: {port: 1}, interval: often}}}", "interval"},
		"negative duration":    {"source: {dns: {name: a.b, maxStale: -5s}}", "maxStale"},
		"port 0":               {"source: {addresses: {ips: [192.0.2.1], health: {tcp: {port: 0}}}}", "port"},
		"relative path":        {"source: {addresses: {ips: [192.0.2.1], health: {http: {port: 1, path: live}}}}", "path"},
		"header in host":       {`source: {addresses: {ips: [192.0.2.1], health: {http: {port: 1, host: "a\r\nb"}}}}`, "host"},
		"up after 0":           {"source: {addresses: {ips: [192.0.2.1], health: {tcp: {port: 1}, upAfter: 0}}}", "upAfter"},
		"address as DNS name":  {"source: {dns: {name: 192.0.2.1}}", "source.addresses"},
		"bad DNS name":         {"source: {dns: {name: a..b}}", "name"},
		"wildcard":             {"source: {dns: {name: '*.b'}}", "name"},
		"unknown family":       {"source: {dns: {name: a.b, families: [IPX]}}", "families"},
		"resolver by name":     {"source: {dns: {name: a.b, resolvers: [ns.example.com]}}", "resolvers"},
		"resolver's port":      {"source: {dns: {name: a.b, resolvers: ['192.0.2.1:65536']}}", "resolvers"},
		"resolver with path":   {"source: {dns: {name: a.b, resolvers: ['192.0.2.1:53/x']}}", "resolvers"},
		"TTLs crossed":         {"source: {dns: {name: a.b, minTTL: 10s, maxTTL: 5s}}", "longer than maxTTL"},
		"TTL of nothing":       {"source: {dns: {name: a.b, minTTL: 0s}}", "1s to 1h"},
		"stale for ever":       {"source: {dns: {name: a.b, maxStale: 200h}}", "168h"},
		"cluster's name":       {"source: {kubernetes: {cluster: East/1, kubeconfigSecret: {name: e}, namespace: a, service: b}}", "cluster"},
		"no secret":            {"source: {kubernetes: {namespace: a, service: b}}", "kubeconfigSecret"},
		"no locator":           {"source: {provider: {name: azure, locator: ''}}", "locator"},
		"provider as address":  {"source: {provider: {name: 'unix:///run/x', locator: a}}", "name"},
		"port name twice":      {"{source: {dns: {name: a.b}}, ports: [{name: a, port: 1}, {name: a, port: 2}]}", "Duplicate"},
		"two identities":       {"{source: {dns: {name: a.b}}, identity: {spiffeID: 'spiffe://a/b', x509: {caConfigMap: {name: a}, subject: b}}}", "exactly one of spiffeID"},
		"no identity":          {"{source: {dns: {name: a.b}}, identity: {}}", "exactly one of spiffeID"},
		"identity of no one":   {"{source: {dns: {name: a.b}}, identity: {spiffeID: 'spiffe://example.org'}}", "spiffeID"},
		"identity of a domain": {"{source: {dns: {name: a.b}}, identity: {spiffeID: 'https://example.org/x'}}", "spiffeID"},
	},
	"TargetPool": {
		"no selector":    {"{stream: {trench: a, conduit: b, stream: c}}", "selector"},
		"empty selector": {"{stream: {trench: a, conduit: b, stream: c}, selector: {}}", "selector"},
		"bad key":        {"{stream: {trench: a, conduit: b, stream: c}, selector: {'a b': c}}", "key of a label"},
		"bad value":      {"{stream: {trench: a, conduit: b, stream: c}, selector: {a: 'b c'}}", "selector"},
		"no stream":      {"{stream: {trench: a, conduit: b}, selector: {a: b}}", "stream"},
		"bad assignment": {"{stream: {trench: a, conduit: b, stream: c}, selector: {a: b}, assignment: maybe}", "assignment"},
		"bad threshold":  {"{stream: {trench: a, conduit: b, stream: c}, selector: {a: b}, panicThreshold: 101}", "panicThreshold"},
		"locator as key": {"{stream: {trench: a, conduit: b, stream: c}, selector: {locator: /subscriptions/e3f0/x}}", "selector"},
	},
	"StreamPolicy": {
		"no source":       {"{stream: {trench: a, conduit: b, stream: c}, sources: []}", "sources"},
		"two in one":      {"{stream: {trench: a, conduit: b, stream: c}, sources: [{cidr: 10.0.0.0/8, service: {name: a}}]}", "exactly one of"},
		"none in one":     {"{stream: {trench: a, conduit: b, stream: c}, sources: [{}]}", "exactly one of"},
		"host bits":       {"{stream: {trench: a, conduit: b, stream: c}, sources: [{cidr: 10.0.0.1/8}]}", "canonical"},
		"bare address":    {"{stream: {trench: a, conduit: b, stream: c}, sources: [{cidr: 10.0.0.1}]}", "canonical"},
		"not canonical":   {"{stream: {trench: a, conduit: b, stream: c}, sources: [{cidr: '2001:DB8::/32'}]}", "canonical"},
		"other namespace": {"{stream: {namespace: n, trench: a, conduit: b, stream: c}, sources: [{cidr: 10.0.0.0/8}]}", "unknown field"},
	},
}
