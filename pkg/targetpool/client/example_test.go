package client_test

import (
	"context"
	"fmt"
	"log"

	"google.golang.org/grpc/credentials/insecure"

	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/targetpool/client"
)

// A load balancer.
func ExampleClient_WatchFeed() {
	c, err := client.New(client.Config{Address: "nsp-service.red:7778", Credentials: insecure.NewCredentials()})
	if err != nil {
		log.Fatal(err)
	}
	feed, err := c.WatchFeed(client.FeedConfig{
		Conduit: &targetpoolv1.Conduit{Trench: "trench-a", Name: "load-balancer"},
		Handler: func(u client.Update) {
			for _, t := range u.Removed {
				fmt.Println("remove", t.GetStream(), t.GetIdentifier(), t.GetAddresses())
			}
			for _, t := range u.Set {
				fmt.Println("set", t.GetStream(), t.GetIdentifier(), t.GetAddresses(), t.GetState())
			}
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	_ = feed.Run(context.Background()) // Until the context ends.
}

// A sidecar.
func ExampleClient_WatchAssignments() {
	c, err := client.New(client.Config{Address: "nsp-service.red:7778", Credentials: insecure.NewCredentials()})
	if err != nil {
		log.Fatal(err)
	}
	assignments, err := c.WatchAssignments(client.AssignmentsConfig{
		Workload: &targetpoolv1.Workload{Namespace: "red", Pod: "target-0"},
		Handler: func(l client.AssignmentList) {
			for _, item := range l.Items {
				fmt.Println("hold", item.GetStream())
			}
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	assignments.Report(&targetpoolv1.Report{Addresses: []string{"172.16.0.7/24"}, NspNamespace: "red"})
	_ = assignments.Run(context.Background())
}
