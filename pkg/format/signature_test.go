// Copyright The Holdfast Authors.
// SPDX-License-Identifier: Apache-2.0

package format

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/holdfast-io/holdfast/pkg/apis/holdfast/v1alpha1"
)

// The examples of RFC 8785, sections 3.2.2 and 3.2.3, without the numbers that are
// not integers.
func TestCanonicalForm(t *testing.T) {
	for input, want := range map[string]string{
		`{"numbers":[0, -7, 9007199254740991],"string":"\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/","literals":[null,true,false]}`:                                                                                `{"literals":[null,true,false],"numbers":[0,-7,9007199254740991],"string":"€$\u000f\nA'B\"\\\\\"/"}`,
		`{"\u20ac":"Euro Sign","\r":"Carriage Return","\ufb33":"Hebrew Letter Dalet With Dagesh","1":"One","\ud83d\ude00":"Emoji: Grinning Face","\u0080":"Control","\u00f6":"Latin Small Letter O With Diaeresis"}`: "{\"\\r\":\"Carriage Return\",\"1\":\"One\",\"\u0080\":\"Control\",\"ö\":\"Latin Small Letter O With Diaeresis\",\"€\":\"Euro Sign\",\"😀\":\"Emoji: Grinning Face\",\"\ufb33\":\"Hebrew Letter Dalet With Dagesh\"}",
		` { "a" : [ ] , "<&>\u2028\u007f" : { } } `: "{\"<&>\u2028\u007f\":{},\"a\":[]}",
		`["\u0008\u0009\u000c",-9007199254740991]`:  `["\b\t\f",-9007199254740991]`,
	} {
		got, err := canonicalise([]byte(input))
		if err != nil || string(got) != want {
			t.Errorf("%s:\n got %s, %v\nwant %s", input, got, err, want)
		}
	}
	for _, input := range []string{`1.0`, `1e3`, `-0`, `9007199254740992`, `-9007199254740992`, `1e400`, `{}{}`, `[`, ``, `{"a":0.5}`, `[0.5]`} {
		if got, err := canonicalise([]byte(input)); err == nil {
			t.Errorf("%s: %s", input, got)
		}
	}
}

// What comes out means the same, whatever goes in, and is its own canonical form.
func TestCanonicalFormMeansTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		document := rapid.MapOf(rapid.String(), rapid.SliceOf(rapid.String())).Draw(t, "document")
		input, err := json.Marshal(document)
		if err != nil {
			t.Fatal(err)
		}
		got, err := canonicalise(input)
		if err != nil {
			t.Fatal(err)
		}
		var again map[string][]string
		if err := json.Unmarshal(got, &again); err != nil {
			t.Fatalf("%s: %v", got, err)
		}
		if back, _ := json.Marshal(again); !bytes.Equal(back, input) {
			t.Fatalf("%s became %s", input, back)
		}
		if twice, err := canonicalise(got); err != nil || !bytes.Equal(twice, got) {
			t.Fatalf("%s became %s, %v", got, twice, err)
		}
	})
}

func signedMetadata(t *testing.T) []byte {
	t.Helper()
	data, err := EncodeBackup(endedBackup(), nil, cluster)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func decodeAt(t *testing.T, data []byte) *v1alpha1.Backup {
	t.Helper()
	backup, err := DecodeBackup(data, Place{StoreName: "shop.daily", Location: "default", SystemNamespace: "holdfast", Now: now})
	if err != nil {
		t.Fatal(err)
	}
	return backup
}

// Another program can check it, with no more than docs/format.md says.
func TestSignatureAsDocumented(t *testing.T) {
	var document map[string]any
	decoder := json.NewDecoder(bytes.NewReader(signedMetadata(t)))
	decoder.UseNumber()
	if err := decoder.Decode(&document); err != nil {
		t.Fatal(err)
	}
	annotations := document["metadata"].(map[string]any)["annotations"].(map[string]any)
	signature, err := base64.StdEncoding.DecodeString(annotations["holdfast.io/signature"].(string))
	if err != nil {
		t.Fatal(err)
	}
	public, err := base64.StdEncoding.DecodeString(annotations["holdfast.io/public-key"].(string))
	if err != nil {
		t.Fatal(err)
	}
	delete(annotations, "holdfast.io/signature")
	// The document has no names beyond ASCII and no characters that Go escapes, so Go's
	// own encoding of maps is the canonical form.
	payload, err := json.Marshal(document)
	if err != nil {
		t.Fatal(err)
	}
	if !ed25519.Verify(public, payload, signature) {
		t.Error("the signature does not verify")
	}
}

// Whoever stores the metadata again may change its form, but nothing that it says.
func TestSignatureOutlivesFormatting(t *testing.T) {
	for _, data := range [][]byte{indented(t, signedMetadata(t)), append([]byte(" \n"), signedMetadata(t)...)} {
		if origin := decodeAt(t, data).Status.Origin; origin.Trust != "" || origin.PublicKey != key.PublicKey() {
			t.Errorf("origin %+v", origin)
		}
	}
}

func TestForged(t *testing.T) {
	replace := func(old, replacement string) func(string) string {
		return func(data string) string {
			changed := strings.Replace(data, old, replacement, 1)
			if changed == data {
				t.Fatalf("there is no %s in %s", old, data)
			}
			return changed
		}
	}
	for name, forge := range map[string]func(string) string{
		"the phase":         replace(`"phase":"PartiallyFailed"`, `"phase":"Completed"`),
		"the requester":     replace("alice@example.com", "mallory@example.com"),
		"the namespace uid": replace("shop-uid", "other-uid"),
		"the cluster":       replace("cluster-uid\":\"cluster-uid", "cluster-uid\":\"other"),
		"an annotation":     replace(`"note":"kept"`, `"note":"changed"`),
		"a field more":      replace(`"spec":{`, `"spec":{"unknown":1,`),
		"a field less":      replace(`"warnings":2,`, ``),
		"another case":      replace(`"warnings":2,`, `"Warnings":2,`),
		"a number":          replace(`"spec":{`, `"spec":{"unknown":1.5,`),
		"the key":           replace(key.PublicKey(), signingKey("mallory").PublicKey()),
		"no key":            replace(`"holdfast.io/public-key":"`+key.PublicKey()+`",`, ``),
		"half a key":        replace(key.PublicKey(), key.PublicKey()[:20]),
		"half a signature":  replace(`"holdfast.io/signature":"`, `"holdfast.io/signature":"AAAA`),
		"a name twice":      replace(`"metadata":{`, `"metadata":{"annotations":{"holdfast.io/signature":"","holdfast.io/public-key":"","note":"forged"}},"metadata":{"deletionGracePeriodSeconds":1,`),
	} {
		backup := decodeAt(t, []byte(forge(string(signedMetadata(t)))))
		if origin := backup.Status.Origin; origin.Trust != v1alpha1.BackupTrustForged || origin.Message == "" {
			t.Errorf("%s: %+v", name, origin)
		}
	}
}

// What is no document is not as anybody has signed it.
func TestNoDocumentIsSigned(t *testing.T) {
	for _, data := range []string{"", "{", "null", "{}", string(signedMetadata(t)) + "{}"} {
		if canonical, err := verify([]byte(data)); err == nil || canonical != nil {
			t.Errorf("%s is believed as %s", data, canonical)
		}
	}
}

// A key has one form, in which it is looked for among those that are trusted: another
// one of the same bytes is no key.
func TestKeysHaveOneForm(t *testing.T) {
	public := key.PublicKey()
	// The last character before the padding bears two bits that nothing is read from.
	last := len(public) - 2
	lax := public[:last] + string(public[last]+1) + "="
	if decoded, err := base64.StdEncoding.DecodeString(lax); err != nil || !bytes.Equal(decoded, key.private.Public().(ed25519.PublicKey)) {
		t.Fatalf("%s is not another form of %s: %v", lax, public, err)
	}
	for _, form := range []string{lax, public + "\n", public[:10] + "\r\n" + public[10:]} {
		var document map[string]any
		if err := json.Unmarshal(signedMetadata(t), &document); err != nil {
			t.Fatal(err)
		}
		annotations := document["metadata"].(map[string]any)["annotations"].(map[string]any)
		delete(annotations, AnnotationSignature)
		annotations[AnnotationPublicKey] = form
		payload, err := json.Marshal(document)
		if err != nil {
			t.Fatal(err)
		}
		if annotations[AnnotationSignature], err = key.sign(payload); err != nil {
			t.Fatal(err)
		}
		if payload, err = json.Marshal(document); err != nil {
			t.Fatal(err)
		}
		if origin := decodeAt(t, payload).Status.Origin; origin.Trust != v1alpha1.BackupTrustForged {
			t.Errorf("the key %q: %+v", form, origin)
		}
	}
}

// Of a name that comes twice, the parser of JSON may take the first, the last, or
// both. What was verified is what is read.
func TestNothingIsReadThatWasNotVerified(t *testing.T) {
	data := strings.Replace(string(signedMetadata(t)), `"metadata":{`, `"metadata":{"labels":{"smuggled":"in"}},"metadata":{`, 1)
	backup := decodeAt(t, []byte(data))
	if backup.Labels["smuggled"] != "" && backup.Status.Origin.Trust == "" {
		t.Errorf("%+v is read with the labels %v", backup.Status.Origin, backup.Labels)
	}
}

func TestUnsignedIsForeign(t *testing.T) {
	unsigned := cluster
	unsigned.Key = nil
	data, err := EncodeBackup(endedBackup(), nil, unsigned)
	if err != nil {
		t.Fatal(err)
	}
	if origin := decodeAt(t, data).Status.Origin; origin.Trust != v1alpha1.BackupTrustForeign || origin.ClaimedRequester != "alice@example.com" {
		t.Errorf("origin %+v", origin)
	}
}

func TestSigningKeyIsNotPrinted(t *testing.T) {
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		for _, printed := range []string{fmt.Sprintf(verb, key), fmt.Sprintf(verb, cluster)} {
			seed := key.Seed()
			for _, secret := range []string{string(seed), fmt.Sprint(seed)[1:20], base64.StdEncoding.EncodeToString(seed), fmt.Sprintf("%x", seed), fmt.Sprintf("%#v", seed)[7:30]} {
				if strings.Contains(printed, secret) {
					t.Errorf("%s prints %s", verb, printed)
				}
			}
		}
	}
	again, err := ParseSigningKey(key.Seed())
	if err != nil || again.PublicKey() != key.PublicKey() {
		t.Errorf("%v, %v", again, err)
	}
	if _, err := ParseSigningKey(key.Seed()[1:]); err == nil {
		t.Error("half a key is taken")
	}
	if _, err := NewSigningKey(strings.NewReader("short")); err == nil {
		t.Error("a key is made of too little")
	}
}
