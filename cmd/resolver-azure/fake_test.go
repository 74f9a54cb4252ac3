package main

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/arm"
	azfake "github.com/Azure/azure-sdk-for-go/sdk/azcore/fake"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v6"
	computefake "github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v6/fake"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v6"
	networkfake "github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v6/fake"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const webID = "/subscriptions/0b1f6471-1bf0-4dda-aec3-cb9272f09590/resourceGroups/edge/providers/Microsoft.Compute/virtualMachineScaleSets/web"

// instance is a virtual machine of the fake cloud with one interface.
type instance struct {
	id, provisioning, power, health string
	addresses                       []string // the first is primary
}

func up(id string, addresses ...string) instance {
	return instance{id: id, provisioning: "Succeeded", power: "PowerState/running", addresses: addresses}
}

// fakeCloud answers as the SDK's own fake servers do, unless it has a refusal.
type fakeCloud struct {
	compute, network http.RoundTripper

	mu        sync.Mutex
	instances []instance
	pageSize  int
	flexible  bool
	refusal   int // HTTP status, 0: none
	after     time.Duration
	asked     []time.Time // when instances were listed
	pages     int
}

// transport makes the SDK's transports a RoundTripper.
type transport func(*http.Request) (*http.Response, error)

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

func newFakeCloud(instances ...instance) *fakeCloud {
	c := &fakeCloud{instances: instances, pageSize: 100}
	c.compute = transport(computefake.NewVirtualMachineScaleSetVMsServerTransport(&computefake.VirtualMachineScaleSetVMsServer{NewListPager: c.listVMs}).Do)
	c.network = transport(networkfake.NewInterfacesServerTransport(&networkfake.InterfacesServer{
		NewListVirtualMachineScaleSetNetworkInterfacesPager: c.listNICs}).Do)
	return c
}

func (c *fakeCloud) azure() azure {
	options := arm.ClientOptions{}
	options.Transport = c
	return azure{credential: &azfake.TokenCredential{}, options: options}
}

// set changes the cloud.
func (c *fakeCloud) set(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
}

// times are when instances were listed.
func (c *fakeCloud) times() []time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]time.Time(nil), c.asked...)
}

// Do implements policy.Transporter.
func (c *fakeCloud) Do(r *http.Request) (*http.Response, error) {
	c.mu.Lock()
	c.pages++
	refusal, after := c.refusal, c.after
	nics := strings.Contains(r.URL.Path, "/networkInterfaces")
	if !nics {
		c.asked = append(c.asked, time.Now())
	}
	c.mu.Unlock()
	if refusal != 0 {
		header := http.Header{"X-Ms-Error-Code": {"Refused"}}
		if after != 0 {
			header.Set("Retry-After", strconv.Itoa(int(after.Seconds())))
		}
		return &http.Response{StatusCode: refusal, Status: http.StatusText(refusal), Header: header, Request: r, Body: io.NopCloser(&bytes.Buffer{})}, nil
	}
	if nics {
		return c.network.RoundTrip(r)
	}
	return c.compute.RoundTrip(r)
}

func (c *fakeCloud) listVMs(_, _ string, options *armcompute.VirtualMachineScaleSetVMsClientListOptions) (resp azfake.PagerResponder[armcompute.VirtualMachineScaleSetVMsClientListResponse]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []*armcompute.VirtualMachineScaleSetVM
	for _, i := range c.instances {
		vm := &armcompute.VirtualMachineScaleSetVM{ID: new(webID + "/virtualMachines/" + i.id),
			Properties: &armcompute.VirtualMachineScaleSetVMProperties{ProvisioningState: new(i.provisioning)}}
		if options != nil && options.Expand != nil && *options.Expand == "instanceView" {
			vm.Properties.InstanceView = &armcompute.VirtualMachineScaleSetVMInstanceView{Statuses: []*armcompute.InstanceViewStatus{
				{Code: new("ProvisioningState/succeeded")}, {Code: new(i.power)}}}
			if i.health != "" {
				vm.Properties.InstanceView.VMHealth = &armcompute.VirtualMachineHealthStatus{Status: &armcompute.InstanceViewStatus{Code: new(i.health)}}
			}
		}
		if c.flexible {
			vm.ID = new("/subscriptions/0b1f6471-1bf0-4dda-aec3-cb9272f09590/resourceGroups/edge/providers/Microsoft.Compute/virtualMachines/" + i.id)
		}
		all = append(all, vm)
	}
	for ; len(all) > c.pageSize; all = all[c.pageSize:] {
		resp.AddPage(http.StatusOK, vmPage(all[:c.pageSize]), nil)
	}
	resp.AddPage(http.StatusOK, vmPage(all), nil)
	return resp
}

func vmPage(vms []*armcompute.VirtualMachineScaleSetVM) (p armcompute.VirtualMachineScaleSetVMsClientListResponse) {
	p.Value = vms
	return p
}

func (c *fakeCloud) listNICs(_, _ string, _ *armnetwork.InterfacesClientListVirtualMachineScaleSetNetworkInterfacesOptions) (resp azfake.PagerResponder[armnetwork.InterfacesClientListVirtualMachineScaleSetNetworkInterfacesResponse]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []*armnetwork.Interface
	for _, i := range c.instances {
		nic := &armnetwork.Interface{Properties: &armnetwork.InterfacePropertiesFormat{Primary: new(true),
			// Azure writes ids now in one case, now in another.
			VirtualMachine: &armnetwork.SubResource{ID: new(strings.ToUpper(webID + "/virtualMachines/" + i.id))}}}
		for n, a := range i.addresses {
			nic.Properties.IPConfigurations = append(nic.Properties.IPConfigurations, &armnetwork.InterfaceIPConfiguration{
				Properties: &armnetwork.InterfaceIPConfigurationPropertiesFormat{PrivateIPAddress: new(a), Primary: new(n == 0)}})
		}
		all = append(all, nic)
	}
	for ; len(all) > c.pageSize; all = all[c.pageSize:] {
		resp.AddPage(http.StatusOK, nicPage(all[:c.pageSize]), nil)
	}
	resp.AddPage(http.StatusOK, nicPage(all), nil)
	return resp
}

func nicPage(nics []*armnetwork.Interface) (p armnetwork.InterfacesClientListVirtualMachineScaleSetNetworkInterfacesResponse) {
	p.Value = nics
	return p
}
