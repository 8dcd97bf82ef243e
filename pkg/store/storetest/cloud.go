// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	// RoleOfPods is the identity of the pods.
	RoleOfPods = "arn:aws:iam::111122223333:role/holdfast"
	// RoleOfLocation is a role that trusts RoleOfPods.
	RoleOfLocation = "arn:aws:iam::111122223333:role/backups"
)

// Cloud fakes AWS's services that give pods credentials: STS, the agent of EKS Pod Identity, and a
// node's metadata service. It gives a session only for the pod's current token.
type Cloud struct {
	// ExternalID must be named to assume RoleOfLocation.
	ExternalID string

	url       string
	tokenFile string

	mu       sync.Mutex
	token    string
	sessions map[string]cloudSession // by access key
	failure  *cloudFailure
	asked    map[string]int
	secrets  []string
}

type cloudSession struct {
	role, token string
	ended       bool
}

type cloudFailure struct {
	status        int
	code, message string
}

// NewCloud starts a cloud for a test, without the machine's identity.
func NewCloud(t *testing.T) *Cloud {
	t.Helper()
	folder := t.TempDir()
	c := &Cloud{tokenFile: filepath.Join(folder, "token"), sessions: map[string]cloudSession{}, asked: map[string]int{}}
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "AWS_") {
			t.Setenv(name, "") // to be set again in the end
			_ = os.Unsetenv(name)
		}
	}
	t.Setenv("AWS_CONFIG_FILE", filepath.Join(folder, "none"))
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", filepath.Join(folder, "none"))
	mux := http.NewServeMux()
	mux.HandleFunc("POST /{$}", c.sts)
	mux.HandleFunc("GET /v1/credentials", c.agent)
	mux.HandleFunc("/latest/", c.metadata)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	c.url = server.URL
	t.Setenv("AWS_ENDPOINT_URL_STS", c.url)
	t.Setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1")
	c.RotateToken(t)
	return c
}

// ServiceAccounts sets a pod's variables for its service account's role (IRSA).
func (c *Cloud) ServiceAccounts(t *testing.T) {
	t.Setenv("AWS_ROLE_ARN", RoleOfPods)
	t.Setenv("AWS_WEB_IDENTITY_TOKEN_FILE", c.tokenFile)
}

// PodIdentity sets a pod's variables with EKS Pod Identity.
func (c *Cloud) PodIdentity(t *testing.T) {
	t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", c.url+"/v1/credentials")
	t.Setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", c.tokenFile)
}

// Node sets a pod's variables with its node's role.
func (c *Cloud) Node(t *testing.T) { t.Setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", c.url) }

// TokenFile returns the file with the pod's token.
func (c *Cloud) TokenFile() string { return c.tokenFile }

// RotateToken replaces the pod's token, as the kubelet does.
func (c *Cloud) RotateToken(t *testing.T) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.token = "eyJhbGciOiJSUzI1NiJ9." + strings.Repeat(rand.Text(), 20)
	c.secrets = append(c.secrets, c.token)
	if err := os.WriteFile(c.tokenFile, []byte(c.token), 0o600); err != nil {
		t.Fatal(err)
	}
}

// EndSessions makes all given credentials expire.
func (c *Cloud) EndSessions() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, session := range c.sessions {
		session.ended = true
		c.sessions[key] = session
	}
}

// Fail makes each request for credentials fail, until status 0.
func (c *Cloud) Fail(status int, code, message string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failure = nil
	if status != 0 {
		c.failure = &cloudFailure{status, code, message}
	}
}

// Asked returns how often a kind of credentials was requested.
func (c *Cloud) Asked(kind string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked[kind]
}

// Leaked returns whether a text has a token or secret of this cloud.
func (c *Cloud) Leaked(text string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, secret := range c.secrets {
		if strings.Contains(text, secret) {
			return true
		}
	}
	return false
}

// Guard makes an S3 server refuse requests without a role's session.
func (c *Cloud) Guard(role string) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			session, known := c.sessionOf(r)
			switch {
			case !known:
				w.WriteHeader(http.StatusForbidden)
				fmt.Fprint(w, "<Error><Code>InvalidAccessKeyId</Code></Error>")
			case session.ended:
				w.WriteHeader(http.StatusBadRequest)
				fmt.Fprint(w, "<Error><Code>ExpiredToken</Code></Error>")
			case session.role != role:
				w.WriteHeader(http.StatusForbidden)
				fmt.Fprint(w, "<Error><Code>AccessDenied</Code></Error>")
			default:
				next.ServeHTTP(w, r)
			}
		})
	}
}

func (c *Cloud) sessionOf(r *http.Request) (cloudSession, bool) {
	_, rest, _ := strings.Cut(r.Header.Get("Authorization"), "Credential=")
	key, _, _ := strings.Cut(rest, "/")
	c.mu.Lock()
	defer c.mu.Unlock()
	session, known := c.sessions[key]
	return session, known && session.token == r.Header.Get("X-Amz-Security-Token")
}

func (c *Cloud) fails(kind string) *cloudFailure {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked[kind]++
	return c.failure
}

func (c *Cloud) open(role string) (key, secret, token string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key, secret, token = "ASIA"+rand.Text(), rand.Text(), strings.Repeat(rand.Text(), 20)
	c.sessions[key] = cloudSession{role: role, token: token}
	c.secrets = append(c.secrets, secret, token)
	return key, secret, token
}

func (c *Cloud) holds(token string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return token == c.token
}

func expiration() string { return time.Now().Add(time.Hour).UTC().Format(time.RFC3339) }

func (c *Cloud) sts(w http.ResponseWriter, r *http.Request) {
	action, role := r.FormValue("Action"), r.FormValue("RoleArn")
	refuse := func(status int, code, message string) {
		w.Header().Set("Content-Type", "text/xml")
		w.WriteHeader(status)
		fmt.Fprintf(w, "<ErrorResponse><Error><Type>Sender</Type><Code>%s</Code><Message>%s</Message></Error><RequestId>%s</RequestId></ErrorResponse>", code, message, rand.Text())
	}
	if failure := c.fails(action); failure != nil {
		refuse(failure.status, failure.code, failure.message)
		return
	}
	switch {
	case action == "AssumeRoleWithWebIdentity" && !c.holds(r.FormValue("WebIdentityToken")):
		refuse(http.StatusBadRequest, "ExpiredTokenException", "Token expired: "+r.FormValue("WebIdentityToken"))
		return
	case action == "AssumeRoleWithWebIdentity" && role == RoleOfPods:
	case action == "AssumeRole" && role == RoleOfLocation:
		caller, known := c.sessionOf(r)
		if caller.ended {
			refuse(http.StatusForbidden, "ExpiredToken", "The security token included in the request is expired")
			return
		}
		if !known || caller.role != RoleOfPods || r.FormValue("ExternalId") != c.ExternalID {
			refuse(http.StatusForbidden, "AccessDenied", "User: "+RoleOfPods+"/pod is not authorized to perform: sts:AssumeRole on resource: "+role)
			return
		}
	default:
		refuse(http.StatusForbidden, "AccessDenied", "Not authorized to perform sts:"+action)
		return
	}
	key, secret, token := c.open(role)
	w.Header().Set("Content-Type", "text/xml")
	fmt.Fprintf(w, `<%[1]sResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><%[1]sResult><Credentials><AccessKeyId>%[2]s</AccessKeyId><SecretAccessKey>%[3]s</SecretAccessKey><SessionToken>%[4]s</SessionToken><Expiration>%[5]s</Expiration></Credentials></%[1]sResult></%[1]sResponse>`,
		action, key, secret, token, expiration())
}

func (c *Cloud) agent(w http.ResponseWriter, r *http.Request) {
	failure := c.fails("agent")
	if failure == nil && !c.holds(r.Header.Get("Authorization")) {
		failure = &cloudFailure{http.StatusForbidden, "AccessDeniedException", "the token is not valid"}
	}
	if failure != nil {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(failure.status)
		_ = json.NewEncoder(w).Encode(map[string]string{"code": failure.code, "message": failure.message})
		return
	}
	c.giveJSON(w)
}

func (c *Cloud) giveJSON(w http.ResponseWriter) {
	key, secret, session := c.open(RoleOfPods)
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]string{
		"Code": "Success", "AccessKeyId": key, "SecretAccessKey": secret, "Token": session, "Expiration": expiration(), "LastUpdated": time.Now().UTC().Format(time.RFC3339),
	})
}

// metadata answers by version 2 of the protocol only.
func (c *Cloud) metadata(w http.ResponseWriter, r *http.Request) {
	const session, roles = "imds-session", "/latest/meta-data/iam/security-credentials/"
	if r.Method == http.MethodPut && r.URL.Path == "/latest/api/token" {
		w.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "21600")
		fmt.Fprint(w, session)
		return
	}
	if failure := c.fails("metadata"); failure != nil {
		w.WriteHeader(failure.status)
		return
	}
	switch {
	case r.Header.Get("X-Aws-Ec2-Metadata-Token") != session:
		w.WriteHeader(http.StatusUnauthorized)
	case r.URL.Path == roles:
		fmt.Fprint(w, "holdfast")
	case r.URL.Path == roles+"holdfast":
		c.giveJSON(w)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}
