package auth

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Target is an ExternalTarget.
type Target struct{ Namespace, Name, UID string }

// String is namespace/name.
func (t Target) String() string { return t.Namespace + "/" + t.Name }

func (t Target) compare(o Target) int {
	return cmp.Or(strings.Compare(t.Namespace, o.Namespace), strings.Compare(t.Name, o.Name), strings.Compare(t.UID, o.UID))
}

// TargetIdentity is what proves somebody to be an ExternalTarget, as its spec.identity says: a SPIFFE ID, or a subject and who vouches
// for it.
type TargetIdentity struct {
	// SPIFFEID is that of its certificate.
	SPIFFEID string
	// Subject is the common name of its certificate or one of its DNS names, to the letter. ConfigMap, in the namespace of the target,
	// has under Key the certificates of the authority that must have signed it.
	Subject, ConfigMap, Key string
}

// ConfigMap names one.
type ConfigMap struct{ Namespace, Name string }

// Targets know which identity is that of which ExternalTarget. An identity that two of them claim proves neither, and one that names
// a ServiceAccount of the NSP's own trust domain proves that alone: else whoever may make an ExternalTarget could take the place of
// others. For the same reason an authority that an ExternalTarget names is believed for subjects of targets that name it, and for
// nothing else: least of all for SPIFFE IDs. It is safe for concurrent use.
type Targets struct {
	cfg TargetsConfig

	mu         sync.Mutex
	namespaces map[string]map[Target]TargetIdentity
	bySPIFFEID map[string][]Target // sorted
	bySubject  map[string][]vouched
	// authorities are the contents of ConfigMaps that somebody names, pools what was read of them.
	authorities map[ConfigMap]map[string]string
	pools       map[authority]*x509.CertPool
	holds       map[*hold]struct{}
	shared      map[string]bool // the identities that two claim, as logged
}

// TargetsConfig is what Targets need; all but the log is optional. Nothing in it may block.
type TargetsConfig struct {
	// Save is given a document of all that is known, for Restore after a restart.
	Save func([]byte)
	// Want is told the ConfigMaps that ExternalTargets name, whenever these are others.
	Want func(map[ConfigMap]bool)
	Log  *slog.Logger
}

// authority is a key of a ConfigMap.
type authority struct {
	ConfigMap
	key string
}

// vouched is a target that is known by a subject.
type vouched struct {
	target Target
	by     authority
}

// hold is something that goes on as long as an identity proves a target.
type hold struct {
	identity Identity
	target   Target
	end      context.CancelCauseFunc
}

// NewTargets knows none.
func NewTargets(cfg TargetsConfig) *Targets {
	return &Targets{
		cfg: cfg, namespaces: make(map[string]map[Target]TargetIdentity), bySPIFFEID: make(map[string][]Target),
		bySubject: make(map[string][]vouched), authorities: make(map[ConfigMap]map[string]string),
		pools: make(map[authority]*x509.CertPool), holds: make(map[*hold]struct{}), shared: make(map[string]bool),
	}
}

// Replace says which ExternalTargets of a namespace have an identity; those that are not named have none any more. What went on by an
// identity that proves another target now, or none, ends. It does not block.
func (t *Targets) Replace(namespace string, all map[Target]TargetIdentity) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if maps.Equal(t.namespaces[namespace], all) {
		return
	}
	if t.namespaces[namespace] = maps.Clone(all); len(all) == 0 {
		delete(t.namespaces, namespace)
	}
	t.changed()
}

// SetAuthority says what a ConfigMap has that was wanted; nil is one that is not there. It does not block.
func (t *Targets) SetAuthority(c ConfigMap, data map[string]string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if before, known := t.authorities[c]; known && maps.Equal(before, data) {
		return
	}
	t.authorities[c] = maps.Clone(data)
	for a := range t.pools {
		if a.ConfigMap == c {
			delete(t.pools, a)
		}
	}
	t.changed()
}

func (t *Targets) changed() {
	t.index()
	t.review()
	if t.cfg.Save != nil {
		t.cfg.Save(t.document())
	}
}

// index brings up to date what targets are found by.
func (t *Targets) index() {
	wanted := make(map[ConfigMap]bool)
	clear(t.bySPIFFEID)
	clear(t.bySubject)
	for namespace, some := range t.namespaces {
		for target, i := range some {
			switch {
			case i.SPIFFEID != "":
				t.bySPIFFEID[i.SPIFFEID] = append(t.bySPIFFEID[i.SPIFFEID], target)
			case i.Subject != "":
				by := authority{ConfigMap{namespace, i.ConfigMap}, i.Key}
				t.bySubject[i.Subject] = append(t.bySubject[i.Subject], vouched{target, by})
				wanted[by.ConfigMap] = true
				t.read(by)
			}
		}
	}
	maps.DeleteFunc(t.authorities, func(c ConfigMap, _ map[string]string) bool { return !wanted[c] })
	maps.DeleteFunc(t.pools, func(a authority, _ *x509.CertPool) bool { return !wanted[a.ConfigMap] })
	if t.cfg.Want != nil {
		t.cfg.Want(wanted)
	}
}

// read reads the certificates of an authority, once.
func (t *Targets) read(a authority) {
	data, told := t.authorities[a.ConfigMap]
	if _, done := t.pools[a]; done || !told {
		return
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(data[a.key])) {
		t.cfg.Log.Warn("a ConfigMap that ExternalTargets name for their identities has no certificate in PEM form, so it proves none of them",
			"namespace", a.Namespace, "configmap", a.Name, "key", a.key, "present", data != nil)
	}
	t.pools[a] = pool
}

// review logs SPIFFE IDs that came to be shared, and ends what is proven no more.
func (t *Targets) review() {
	shared := make(map[string]bool)
	for id, claimants := range t.bySPIFFEID {
		slices.SortFunc(claimants, Target.compare)
		if len(claimants) > 1 {
			t.share(shared, id, claimants)
		}
	}
	for subject, claimants := range t.bySubject {
		for pem, some := range t.byAuthority(claimants) {
			if len(some) > 1 {
				t.share(shared, subject+" of "+pem, some)
			}
		}
	}
	t.shared = shared
	for h := range t.holds {
		if now, err := t.find(h.identity); err != nil {
			h.end(err)
		} else if now != h.target {
			h.end(notAnyMore(h.identity, h.target))
		}
	}
}

// byAuthority are the claimants of one subject by the text of the authority that they name, wherever it is written.
func (t *Targets) byAuthority(claimants []vouched) map[string][]Target {
	same := make(map[string][]Target)
	for _, v := range claimants {
		if text := strings.TrimSpace(t.authorities[v.by.ConfigMap][v.by.key]); text != "" {
			same[text] = append(same[text], v.target)
		}
	}
	return same
}

func (t *Targets) share(shared map[string]bool, identity string, claimants []Target) {
	if shared[identity] = true; !t.shared[identity] {
		slices.SortFunc(claimants, Target.compare)
		name, _, _ := strings.Cut(identity, " of ")
		t.cfg.Log.Warn("several ExternalTargets claim one identity, so it proves none of them; give each its own",
			"identity", name, "externaltargets", claimants)
	}
}

func notAnyMore(i Identity, t Target) error {
	return Unproven(NoIdentity, "%s is not the identity of ExternalTarget %s any more", i, t)
}

// Find is the ExternalTarget that an identity proves; zero for none. The error is a refusal: several claim it.
func (t *Targets) Find(i Identity) (Target, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.find(i)
}

func (t *Targets) find(i Identity) (Target, error) {
	var found []Target
	switch {
	case i.Account != (ServiceAccount{}):
	case !i.SPIFFEID.IsZero():
		found = t.bySPIFFEID[i.SPIFFEID.String()]
	default:
		found = t.verified(i.Certificates)
	}
	switch len(found) {
	case 0:
		return Target{}, nil
	case 1:
		return found[0], nil
	default:
		return Target{}, Deny(SharedIdentity, "ExternalTargets %s and %s both claim the identity %s, so it proves neither", found[0], found[1], i)
	}
}

// verified are the targets that a chain proves by its subject, sorted.
func (t *Targets) verified(chain []*x509.Certificate) []Target {
	if len(chain) == 0 {
		return nil
	}
	others := x509.NewCertPool()
	for _, c := range chain[1:] {
		others.AddCert(c)
	}
	var found []Target
	for _, subject := range subjects(chain[0]) {
		for _, v := range t.bySubject[subject] {
			_, err := chain[0].Verify(x509.VerifyOptions{
				Roots: cmp.Or(t.pools[v.by], x509.NewCertPool()), Intermediates: others, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
			})
			if err == nil {
				found = append(found, v.target)
			}
		}
	}
	slices.SortFunc(found, Target.compare)
	return slices.Compact(found)
}

// subjects are what a certificate names.
func subjects(c *x509.Certificate) []string {
	all := slices.Clone(c.DNSNames)
	if c.Subject.CommonName != "" {
		all = append(all, c.Subject.CommonName)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Accept tells whether a client without a SPIFFE ID is to be let in: its certificate proves at least one ExternalTarget.
func (t *Targets) Accept(chain []*x509.Certificate) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.verified(chain)) > 0 {
		return nil
	}
	return fmt.Errorf("the certificate of %s has no SPIFFE ID, and no ExternalTarget has that subject and the authority that signed it",
		Identity{Certificates: chain})
}

// Hold calls end as soon as the identity does not prove the target any more, until what it returns is called.
func (t *Targets) Hold(i Identity, target Target, end context.CancelCauseFunc) (release func()) {
	h := &hold{i, target, end}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.holds[h] = struct{}{}
	if now, err := t.find(i); err != nil || now != target { // it changed since it was asked for
		end(notAnyMore(i, target))
	}
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.holds, h)
	}
}

// Shared is how many identities several ExternalTargets claim.
func (t *Targets) Shared() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.shared)
}

// document is all that is known.
type document struct {
	Targets     []storedTarget
	Authorities []storedAuthority
}

type storedTarget struct {
	Target   Target
	Identity TargetIdentity
}

type storedAuthority struct {
	ConfigMap ConfigMap
	Data      map[string]string
}

func (t *Targets) document() []byte {
	var d document
	for _, some := range t.namespaces {
		for target, identity := range some {
			d.Targets = append(d.Targets, storedTarget{target, identity})
		}
	}
	slices.SortFunc(d.Targets, func(a, b storedTarget) int { return a.Target.compare(b.Target) })
	for c, data := range t.authorities {
		d.Authorities = append(d.Authorities, storedAuthority{c, data})
	}
	slices.SortFunc(d.Authorities, func(a, b storedAuthority) int {
		return cmp.Or(strings.Compare(a.ConfigMap.Namespace, b.ConfigMap.Namespace), strings.Compare(a.ConfigMap.Name, b.ConfigMap.Name))
	})
	data, err := json.Marshal(d)
	if err != nil {
		panic(err) // strings can be marshalled
	}
	return data
}

// Restore takes up what was saved of some namespaces, of which it counts until they are replaced: after a restart without API server
// they are who they were. The error says that the document is damaged.
func (t *Targets) Restore(saved []byte, namespaces []string) error {
	var d document
	if err := json.Unmarshal(saved, &d); err != nil {
		return fmt.Errorf("reading the stored identities of ExternalTargets: %w", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, one := range d.Authorities {
		t.authorities[one.ConfigMap] = one.Data
	}
	for _, one := range d.Targets {
		ns := one.Target.Namespace
		if !slices.Contains(namespaces, ns) {
			continue
		}
		if t.namespaces[ns] == nil {
			t.namespaces[ns] = make(map[Target]TargetIdentity)
		}
		t.namespaces[ns][one.Target] = one.Identity
	}
	t.index()
	t.review()
	return nil
}
