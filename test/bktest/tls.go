package bktest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"time"
)

// ListenTLS is Listen over TLS with HTTP/2, which streams need. file has the certificate, and its key, so that clients trust the
// same one after a restart; a missing file is made. It is its own authority, for 127.0.0.1.
func (s *Server) ListenTLS(addr, file string) error {
	if _, err := os.Stat(file); err != nil {
		text, err := newCertificate()
		if err == nil {
			err = os.WriteFile(file, text, 0o644)
		}
		if err != nil {
			return fmt.Errorf("make certificate: %w", err)
		}
	}
	cert, err := tls.LoadX509KeyPair(file, file)
	if err != nil {
		return fmt.Errorf("read certificate %s: %w", file, err)
	}
	return s.listen("https", addr, &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12})
}

// newCertificate returns a certificate and its key as PEM.
func newCertificate() ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: "bkstub"},
		NotBefore: now.AddDate(-1, 0, 0), NotAfter: now.AddDate(10, 0, 0), // clocks of tests jump
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return append(text, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})...), nil
}
