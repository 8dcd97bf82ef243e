// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"net/http"
	"slices"
	"strings"

	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// describeRefusedPatch adds the operation PATCH to the description of each object that can be created, although
// the server answers 405. kubectl looks only there for the parameter fieldValidation before it creates an object.
// Without it, kubectl lists the cluster's CRDs, which most users may not.
//
// kubectl (QueryParamVerifierV3 of k8s.io/cli-runtime, up to v0.34 at least) accepts a PATCH with the object's
// kind on any path. The operation is deprecated, with only the answer 405.
func describeRefusedPatch(api *spec3.OpenAPI) (*spec3.OpenAPI, error) {
	if api.Paths == nil {
		return api, nil
	}
	for path, collection := range api.Paths.Paths {
		if collection.Post == nil || !strings.HasPrefix(path, "/apis/"+v1alpha1.GroupName+"/") {
			continue
		}
		object := api.Paths.Paths[path+"/{name}"]
		if object == nil || object.Patch != nil {
			continue
		}
		object.Patch = &spec3.Operation{OperationProps: spec3.OperationProps{
			Deprecated:  true,
			Tags:        collection.Post.Tags,
			Description: "is always answered with 405: objects of this kind don't change. It is described for the sake of clients that look here for the parameters of a request.",
			OperationId: strings.Replace(collection.Post.OperationId, "create", "patch", 1),
			Parameters: slices.DeleteFunc(slices.Clone(collection.Post.Parameters), func(p *spec3.Parameter) bool {
				return p.In != "query"
			}),
			Responses: &spec3.Responses{ResponsesProps: spec3.ResponsesProps{
				StatusCodeResponses: map[int]*spec3.Response{
					http.StatusMethodNotAllowed: {ResponseProps: spec3.ResponseProps{Description: http.StatusText(http.StatusMethodNotAllowed)}},
				},
			}},
		}, VendorExtensible: spec.VendorExtensible{Extensions: collection.Post.Extensions}}
	}
	return api, nil
}
