package nsp

import (
	"context"
	"time"

	"github.com/nordix/meridio-nsp/pkg/engine"
)

// rebuildingDocument is stored while a lost registry is being rebuilt, for a restart before that is done.
const rebuildingDocument = "rebuilding"

// rebuilding tells whether registrations were lost that may still come back.
func (p *process) rebuilding() bool {
	_, begun := p.saved.Documents[rebuildingDocument]
	return p.saved.Lost || begun
}

// rebuild says when the registrations that were lost are back. A target refreshes at least twice in a lease, and its first
// Register after the loss is stored DISABLED as every first one; a quarter is for those who are late.
func (p *process) rebuild(ctx context.Context) error {
	wait := p.common.EntryTimeout + p.common.EntryTimeout/4
	p.log.WarnContext(ctx, "the stored registrations were lost; load balancers are told nothing until their targets have registered again",
		"wait", wait.String())
	p.registry.SaveDocument(rebuildingDocument, []byte(time.Now().UTC().Format(time.RFC3339)))
	select {
	case <-ctx.Done():
		return nil
	case <-p.store.opened: // before, nobody can register
	}
	select {
	case <-ctx.Done():
		return nil
	case <-time.After(wait):
	}
	p.engine.Post(engine.Rebuilt{})
	p.registry.SaveDocument(rebuildingDocument, nil)
	p.log.InfoContext(ctx, "load balancers are told of their targets again")
	<-ctx.Done()
	return nil
}
