package hostile

import (
	"strings"
	"time"
)

// paths are ways to reach an endpoint that a plain comparison of paths could miss.
func paths() []Request {
	const group = "paths"
	list := asks(group, Refused,
		"GET //volumes",
		"GET /./volumes",
		"GET /_ping/../volumes",
		"GET /_ping/..;/volumes",
		"GET /_ping%2f..%2fvolumes",
		"GET /%2e%2e/volumes",
		"GET /v1.45/../volumes",
		"GET /v1.45//volumes",
		"GET /v1.45/v1.45/volumes",
		"GET /V1.45/volumes",
		"GET /v01.45/volumes",
		"GET /v1.45%00/volumes",
		"GET /v1.999/volumes",
		"GET /v1.12/containers/json?all=1",
		"GET /v1.24/containers/{other}/json",
		"GET /v2.0/volumes",
		"GET /%76olumes",
		"GET /volumes%00",
		"GET /volumes%0d%0aX:%20y",
		`GET /_ping\..\volumes`,
		"GET /images/../volumes/json",
		"GET /images/%2e%2e/containers/{other}/json",
		"GET /images/a%2f..%2f..%2fcontainers%2f{other}/json",
		"GET /images/x@sha256:y/../../containers/{other}/json",
		"GET /containers/{own}/../{other}/json",
		"GET /containers/{own}%2f..%2f{other}/json",
		"GET /containers/..%2fvolumes/json",
		"GET /containers/%2f{otherName}/json",
		"GET /containers/{own}/json/../../{other}/json",
		"GET /containers/{own};/json/../../{other}/json",
		"GET /containers//json",
		"DELETE /containers/",
		"GET http://docker/volumes",
		"GET http://127.0.0.1:2375/volumes",
		"CONNECT docker:2375",
		"TRACE /volumes",
		"PROPFIND /volumes",
		"get /volumes",
		"POST /containers/{other}/json",
		"POST /KBNODE/reclaim",
		"POST /kbnode/reclaim?root=/",
		"POST /kbnode/reclaim/../../volumes",
	)
	override := asks(group, Blind, "GET /containers/{own}/json")[0]
	override.Name, override.Header = "a method in a header", "X-HTTP-Method-Override: DELETE\r\nX-Original-URL: /volumes\r\nX-Rewrite-URL: /volumes\r\n"
	return append(append(list, override), asks(group, Blind, "OPTIONS *")...)
}

// evil is the body of a request for a privileged container.
const evil = `{"Image":"{image}","HostConfig":{"Privileged":true}}`

func raw(name, text string) Request { return Request{Group: "http", Name: name, Raw: text} }

// after is an attack that follows an innocent request.
func after(name, text string) Request {
	return Request{Group: "http", Name: name, Raw: "GET /_ping HTTP/1.1\r\nHost: docker\r\n" + text, Before: 1}
}

// wire are requests whose ends two readers could see at different places.
func wire() []Request {
	const (
		post = "POST /containers/create?name={name}-attack HTTP/1.1\r\nHost: docker\r\nContent-Type: application/json\r\n"
		// Read as a separate request, this asks for something refused.
		hidden = "GET /volumes HTTP/1.1\r\nHost: docker\r\nConnection: close\r\n\r\n"
	)
	return []Request{
		raw("a length and chunks", post+"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"+hidden),
		raw("chunks and a length", post+"Transfer-Encoding: chunked\r\nContent-Length: 100\r\n\r\n0\r\n\r\n"+hidden),
		after("a length and chunks on a ping", "Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"+hidden),
		after("a body on a ping", "Content-Length: 5\r\n\r\nx=1\r\n"+hidden),
		raw("two lengths", post+"Content-Length: 0\r\nContent-Length: 60\r\n\r\n"+hidden),
		raw("a list of lengths", post+"Content-Length: 0, 60\r\n\r\n"+hidden),
		raw("a negative length", post+"Content-Length: -1\r\n\r\n"+hidden),
		raw("a length with a sign", post+"Content-Length: +2\r\n\r\n{}"+hidden),
		raw("a length in hex", post+"Content-Length: 0x2\r\n\r\n{}"+hidden),
		raw("a length beyond 64 bits", post+"Content-Length: 99999999999999999999\r\n\r\n{}"),
		raw("identity and chunked", post+"Transfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n"+hidden),
		raw("chunked twice", post+"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"+hidden),
		raw("an unknown coding", post+"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"+hidden),
		raw("chunks with a vertical tab", post+"Transfer-Encoding:\vchunked\r\n\r\n0\r\n\r\n"+hidden),
		raw("chunks in HTTP/1.0", strings.Replace(post, "HTTP/1.1", "HTTP/1.0", 1)+"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"+hidden),
		raw("gzip and chunks", post+"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"+hidden),
		raw("a chunk of no size", post+"Transfer-Encoding: chunked\r\n\r\n\r\n"+evil+"\r\n0\r\n\r\n"),
		raw("a chunk of negative size", post+"Transfer-Encoding: chunked\r\n\r\n-1\r\n"+evil+"\r\n0\r\n\r\n"),
		raw("a chunk beyond 64 bits", post+"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n"+evil+"\r\n0\r\n\r\n"),
		raw("a chunk that is longer than it says", post+"Transfer-Encoding: chunked\r\n\r\n2\r\n{}"+evil+"\r\n0\r\n\r\n"),
		raw("chunks with extensions", post+"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n2;a=\"\r\n0\"\r\n{}\r\n0\r\n\r\n"),
		raw("chunks with long extensions", post+"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n2;"+strings.Repeat("a", 20<<10)+"\r\n{}\r\n0\r\n\r\n"),
		raw("chunks with trailers", post+"Connection: close\r\nTransfer-Encoding: chunked\r\nTrailer: Content-Length\r\n\r\n2\r\n{}\r\n0\r\nContent-Length: 60\r\nHost: evil\r\n\r\n"),
		raw("a line that is folded", post+"X-A: b\r\n Content-Length: 60\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"),
		raw("a blank before the colon", post+"Content-Length : 60\r\n\r\n"+hidden),
		raw("a NUL in a header", post+"X-A: a\x00b\r\nContent-Length: 2\r\n\r\n{}"),
		{Group: "http", Name: "lines that end with CR", Raw: strings.ReplaceAll(post, "\r\n", "\r") + "\r\r", Patience: patience},
		raw("a header without a colon", post+"Content-Length\r\n\r\n"),
		raw("no host", "POST /containers/create HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"),
		raw("two hosts", "POST /containers/create HTTP/1.1\r\nHost: a\r\nHost: b\r\nContent-Length: 2\r\n\r\n{}"),
		raw("a host with a blank", "GET /volumes HTTP/1.1\r\nHost: a b\r\n\r\n"),
		raw("another host", "GET /volumes HTTP/1.1\r\nHost: 169.254.169.254\r\nConnection: close\r\n\r\n"),
		raw("HTTP/0.9", "GET /volumes\r\n\r\n"),
		raw("HTTP/1.0", "GET /volumes HTTP/1.0\r\n\r\n"),
		raw("HTTP/1.0 that is kept alive", "GET /volumes HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"),
		raw("HTTP/1.999", "GET /volumes HTTP/1.999\r\nHost: docker\r\n\r\n"),
		raw("HTTP/2 at once", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"),
		raw("HTTP/3.0", "GET /volumes HTTP/3.0\r\nHost: docker\r\n\r\n"),
		raw("TLS", "\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00\r\n\r\n"),
		raw("blanks in the request line", "GET  /volumes  HTTP/1.1\r\nHost: docker\r\n\r\n"),
		raw("an upgrade to h2c", "GET /volumes HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"),
		raw("an upgrade on another endpoint", "POST /exec/{own}/start HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 2\r\n\r\n{}"),
		raw("an attach without an upgrade", "POST /containers/{own}/attach?stream=1 HTTP/1.1\r\nHost: docker\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"),
		raw("an attach that upgrades to something else", "POST /containers/{own}/attach?stream=1 HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 0\r\n\r\n"),
		{Group: "http", Name: "a request behind an attach", Before: 1, Patience: quiet * 3,
			Raw: "POST /containers/{own}/attach?stream=1&stdin=1&stdout=1 HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 0\r\n\r\n" + hidden},
		after("a request behind a ping", "\r\n"+hidden),
		after("a create behind a ping", "\r\n"+post+"Connection: close\r\nContent-Length: 2\r\n\r\n{}"),
		raw("100-continue", post+"Connection: close\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"),
		raw("another expectation", post+"Expect: 200-ok\r\nContent-Length: 2\r\n\r\n{}"),
		raw("a header of 100 KB", "GET /volumes HTTP/1.1\r\nHost: docker\r\nX-A: "+strings.Repeat("a", 100<<10)+"\r\n\r\n"),
		raw("a path of 100 KB", "GET /"+strings.Repeat("a", 100<<10)+" HTTP/1.1\r\nHost: docker\r\n\r\n"),
		raw("ten thousand headers", "GET /volumes HTTP/1.1\r\nHost: docker\r\n"+strings.Repeat("X: y\r\n", 10000)+"\r\n"),
		raw("nothing but line ends", strings.Repeat("\r\n", 1000)),
		{Group: "http", Name: "a privileged body in zip", Method: "POST", Path: "/containers/create?name={name}-attack", Header: "Content-Encoding: gzip\r\n", Body: evil},
		{Group: "http", Name: "a privileged body as a form", Method: "POST", Path: "/containers/create?name={name}-attack", Header: "Content-Type: application/x-www-form-urlencoded\r\n", Body: evil},
		{Group: "http", Name: "a megabyte on a path without a body", Method: "POST", Path: "/images/load", Body: strings.Repeat("a", 1<<20)},
	}
}

// clients are connections that take their time. The guard's own deadlines are ten seconds
// for a header and thirty for a body.
func clients() []Request {
	const header, body = 40 * time.Second, 75 * time.Second
	const begun = "POST /containers/create?name={name}-attack HTTP/1.1\r\nHost: docker\r\nContent-Length: 10000\r\nConnection: close\r\n\r\n{"
	return []Request{
		{Group: "slow clients", Name: "half a header", Raw: "GET /volumes HTTP/1.1\r\nHost: doc", Patience: header},
		{Group: "slow clients", Name: "a header that never ends", Raw: "GET /volumes HTTP/1.1\r\nHost: docker\r\nX-A: ", Drip: "a", Patience: header},
		{Group: "slow clients", Name: "endless headers", Raw: "GET /volumes HTTP/1.1\r\nHost: docker\r\n", Drip: "X: y\r\n", Patience: header},
		{Group: "slow clients", Name: "half a body", Raw: begun, Patience: body},
		{Group: "slow clients", Name: "a body that never ends", Raw: begun, Drip: " ", Patience: body},
		{Group: "slow clients", Name: "endless chunks", Patience: body, Drip: "1\r\n \r\n",
			Raw: "POST /containers/create?name={name}-attack HTTP/1.1\r\nHost: docker\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"},
	}
}
