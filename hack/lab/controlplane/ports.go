// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// Ports are taken from below the range from which Linux picks the local ports
// of outgoing connections (32768 and up), so that none of those takes one
// between the choice and its use.
const firstPort, lastPort = 20000, 32767

// FreePorts finds n different TCP ports that nothing listens on at address.
func FreePorts(address string, n int) ([]int, error) {
	var ports []int
	for range 1000 {
		if len(ports) == n {
			return ports, nil
		}
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		l, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(port)))
		if err != nil {
			var parse *net.ParseError
			if errors.As(err, &parse) {
				return nil, err
			}
			continue
		}
		// Held until all are chosen, so that none is chosen twice.
		defer l.Close()
		ports = append(ports, port)
	}
	return nil, fmt.Errorf("no %d free ports between %d and %d on %s; is the address one of this machine?", n, firstPort, lastPort, address)
}
