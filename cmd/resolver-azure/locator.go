package main

import (
	"fmt"
	"regexp"
	"strings"
)

// scaleSet is a virtual machine scale set, by the parts of its resource id.
type scaleSet struct {
	subscription, group, name string
}

// The names are restricted as Azure restricts them: they become part of a URL, in which ".." would name something else.
// https://learn.microsoft.com/azure/azure-resource-manager/management/resource-name-rules
var scaleSetID = regexp.MustCompile(`(?i)^/subscriptions/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})` +
	`/resourceGroups/([-\pL\pN_.()]{0,89}[-\pL\pN_()])` +
	`/providers/Microsoft\.Compute/virtualMachineScaleSets/([0-9a-z_](?:[-0-9a-z_.]{0,62}[0-9a-z_])?)(/.*)?$`)

const wanted = "/subscriptions/<id>/resourceGroups/<group>/providers/Microsoft.Compute/virtualMachineScaleSets/<name>"

// parseLocator says in its error what to write instead.
func parseLocator(locator string) (scaleSet, error) {
	parts := scaleSetID.FindStringSubmatch(locator)
	if parts == nil {
		return scaleSet{}, fmt.Errorf(`%.100q is not the resource id of a scale set, which "az vmss show --query id" prints: %s`, locator, wanted)
	}
	if below := strings.TrimSuffix(parts[4], "/"); below != "" {
		return scaleSet{}, fmt.Errorf("the resource id goes on after that of a scale set: leave %.100q out", below)
	}
	return scaleSet{subscription: parts[1], group: parts[2], name: parts[3]}, nil
}

// id is the resource id in lower case: Azure takes ids that differ in case only for the same.
func (s scaleSet) id() string {
	return strings.ToLower("/subscriptions/" + s.subscription + "/resourceGroups/" + s.group +
		"/providers/Microsoft.Compute/virtualMachineScaleSets/" + s.name)
}

// within returns whether the scale set is, or is below, one of the scopes; no scope: everything is.
func (s scaleSet) within(scopes []string) bool {
	for _, scope := range scopes {
		if strings.HasPrefix(s.id()+"/", strings.ToLower(strings.TrimSuffix(scope, "/"))+"/") {
			return true
		}
	}
	return len(scopes) == 0
}

// checkScopes refuses what no scale set can be below: a mistyped scope would refuse all.
func checkScopes(scopes []string) error {
	for _, scope := range scopes {
		if !strings.HasPrefix(strings.ToLower(scope), "/subscriptions/") {
			return fmt.Errorf("--scope %q is no resource id: it starts with /subscriptions/", scope)
		}
	}
	return nil
}
