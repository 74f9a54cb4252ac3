package main

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/arm"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v6"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v6"

	resolverv1 "github.com/nordix/meridio-nsp/api/resolver/v1"
)

// azure is how Azure is asked.
type azure struct {
	credential azcore.TokenCredential
	options    arm.ClientOptions
	// all lists all IP configurations, not only the primary ones.
	all bool
}

// reader asks for one scale set.
type reader struct {
	set  scaleSet
	all  bool
	vms  *armcompute.VirtualMachineScaleSetVMsClient
	nics *armnetwork.InterfacesClient
}

func (a azure) reader(set scaleSet) (*reader, error) {
	options := a.options
	options.Retry.MaxRetries = -1        // when to ask again is decided in one place: poll.go
	options.DisableRPRegistration = true // it needs the right to write
	credential := tokens{a.credential}
	vms, err := armcompute.NewVirtualMachineScaleSetVMsClient(set.subscription, credential, &options)
	if err != nil {
		return nil, err
	}
	nics, err := armnetwork.NewInterfacesClient(set.subscription, credential, &options)
	return &reader{set: set, all: a.all, vms: vms, nics: nics}, err
}

// read returns the endpoints in the order of their addresses. Instances come first, so that an interface of one that has gone
// in between finds no instance.
func (r *reader) read(ctx context.Context) ([]*resolverv1.Endpoint, error) {
	expand := "instanceView"
	vms, err := pages(ctx, r.vms.NewListPager(r.set.group, r.set.name, &armcompute.VirtualMachineScaleSetVMsClientListOptions{Expand: &expand}),
		func(p armcompute.VirtualMachineScaleSetVMsClientListResponse) []*armcompute.VirtualMachineScaleSetVM {
			return p.Value
		})
	if err != nil {
		return nil, fmt.Errorf("listing instances: %w", err)
	}
	states := make(map[string]resolverv1.Readiness, len(vms))
	for _, vm := range vms {
		id := strings.ToLower(value(vm.ID))
		if !strings.HasPrefix(id, r.set.id()+"/") {
			return nil, errFlexible
		}
		states[id] = readiness(vm.Properties)
	}
	nics, err := pages(ctx, r.nics.NewListVirtualMachineScaleSetNetworkInterfacesPager(r.set.group, r.set.name, nil),
		func(p armnetwork.InterfacesClientListVirtualMachineScaleSetNetworkInterfacesResponse) []*armnetwork.Interface {
			return p.Value
		})
	if err != nil {
		return nil, fmt.Errorf("listing network interfaces: %w", err)
	}
	return endpoints(states, nics, r.all), nil
}

func pages[P, E any](ctx context.Context, pager *runtime.Pager[P], of func(P) []E) (all []E, err error) {
	for pager.More() {
		page, err := pager.NextPage(ctx)
		if err != nil {
			return nil, err
		}
		all = append(all, of(page)...)
	}
	return all, nil
}

// readiness of an instance. Where the application's health is watched it says more than that the machine has been set up.
// https://learn.microsoft.com/azure/virtual-machines/states-billing
// https://learn.microsoft.com/azure/virtual-machine-scale-sets/virtual-machine-scale-sets-health-extension
func readiness(p *armcompute.VirtualMachineScaleSetVMProperties) resolverv1.Readiness {
	if p == nil || p.InstanceView == nil || !slices.ContainsFunc(p.InstanceView.Statuses, running) {
		return resolverv1.Readiness_READINESS_NOT_READY
	}
	provisioned := value(p.ProvisioningState)
	if strings.EqualFold(provisioned, "Deleting") {
		return resolverv1.Readiness_READINESS_DRAINING
	}
	// An instance that is being updated, say its tags, goes on serving.
	ready := strings.EqualFold(provisioned, "Succeeded") || strings.EqualFold(provisioned, "Updating")
	if h := p.InstanceView.VMHealth; h != nil && h.Status != nil {
		ready = strings.EqualFold(value(h.Status.Code), "HealthState/healthy")
	}
	if ready {
		return resolverv1.Readiness_READINESS_READY
	}
	return resolverv1.Readiness_READINESS_NOT_READY
}

func running(s *armcompute.InstanceViewStatus) bool {
	return s != nil && strings.EqualFold(value(s.Code), "PowerState/running")
}

// endpoints are the private addresses of the instances.
func endpoints(states map[string]resolverv1.Readiness, nics []*armnetwork.Interface, all bool) []*resolverv1.Endpoint {
	var found []*resolverv1.Endpoint
	for _, nic := range nics {
		if nic.Properties == nil || nic.Properties.VirtualMachine == nil {
			continue
		}
		state, ok := states[strings.ToLower(value(nic.Properties.VirtualMachine.ID))]
		if !ok || !all && !value(nic.Properties.Primary) {
			continue
		}
		for _, addr := range addresses(nic.Properties.IPConfigurations, all) {
			found = append(found, &resolverv1.Endpoint{Address: addr.String(), Readiness: state})
		}
	}
	slices.SortFunc(found, func(a, b *resolverv1.Endpoint) int { return cmp.Compare(a.Address, b.Address) })
	return slices.CompactFunc(found, func(a, b *resolverv1.Endpoint) bool { return a.Address == b.Address })
}

// addresses are those of all configurations, or of the primary one and the first of the other family: Azure lets no IPv6
// configuration be primary.
func addresses(configurations []*armnetwork.InterfaceIPConfiguration, all bool) []netip.Addr {
	first := map[bool]netip.Addr{} // by whether it is IPv4
	var every []netip.Addr
	for _, c := range configurations {
		if c.Properties == nil {
			continue
		}
		addr, err := netip.ParseAddr(value(c.Properties.PrivateIPAddress))
		if err != nil {
			continue // none assigned yet
		}
		every = append(every, addr)
		if _, ok := first[addr.Is4()]; !ok || value(c.Properties.Primary) {
			first[addr.Is4()] = addr
		}
	}
	if all {
		return every
	}
	return slices.DeleteFunc(every, func(a netip.Addr) bool { return first[a.Is4()] != a })
}

// value is that of a field that Azure may leave out.
func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
