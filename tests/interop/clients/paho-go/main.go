// Driver around Eclipse Paho's clients for Go: paho.mqtt.golang for MQTT 3.1 and 3.1.1, paho.golang for MQTT 5.
// The protocol is described in tests/interop/README.md.
package main

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

const patience = 15 * time.Second

// Properties by the names of the standard in snake case.
type Properties struct {
	SessionExpiryInterval    *uint32     `json:"session_expiry_interval,omitempty"`
	ReceiveMaximum           *uint16     `json:"receive_maximum,omitempty"`
	MaximumPacketSize        *uint32     `json:"maximum_packet_size,omitempty"`
	TopicAliasMaximum        *uint16     `json:"topic_alias_maximum,omitempty"`
	WillDelayInterval        *uint32     `json:"will_delay_interval,omitempty"`
	PayloadFormatIndicator   *byte       `json:"payload_format_indicator,omitempty"`
	MessageExpiryInterval    *uint32     `json:"message_expiry_interval,omitempty"`
	ContentType              string      `json:"content_type,omitempty"`
	ResponseTopic            string      `json:"response_topic,omitempty"`
	CorrelationData          []byte      `json:"correlation_data,omitempty"`
	TopicAlias               *uint16     `json:"topic_alias,omitempty"`
	SubscriptionIdentifiers  []int       `json:"subscription_identifiers,omitempty"`
	AssignedClientIdentifier string      `json:"assigned_client_identifier,omitempty"`
	UserProperties           [][2]string `json:"user_properties,omitempty"`
}

type Message struct {
	Topic      string     `json:"topic"`
	Payload    []byte     `json:"payload"`
	QoS        byte       `json:"qos"`
	Retain     bool       `json:"retain"`
	Dup        *bool      `json:"dup,omitempty"`
	Properties Properties `json:"properties"`
}

type Request struct {
	ID int    `json:"id"`
	Do string `json:"do"`
	As string `json:"as"`

	// connect
	Version   int      `json:"version"`
	ClientID  string   `json:"client_id"`
	Host      string   `json:"host"`
	Port      int      `json:"port"`
	Transport string   `json:"transport"`
	Clean     bool     `json:"clean"`
	KeepAlive uint16   `json:"keep_alive"`
	Username  string   `json:"username"`
	Password  string   `json:"password"`
	CA        string   `json:"ca"`
	Cert      string   `json:"cert"`
	Key       string   `json:"key"`
	Will      *Message `json:"will"`

	// subscribe and unsubscribe
	Filter            string `json:"filter"`
	Identifier        int    `json:"identifier"`
	NoLocal           bool   `json:"no_local"`
	RetainAsPublished bool   `json:"retain_as_published"`
	RetainHandling    byte   `json:"retain_handling"`

	// publish
	AliasIsKnown bool `json:"alias_is_known"`
	Message
}

// Answer and event at the same time: one JSON object per line.
type Answer struct {
	ID             int         `json:"id,omitempty"`
	As             string      `json:"as,omitempty"`
	Event          string      `json:"event,omitempty"`
	Error          string      `json:"error,omitempty"`
	Refused        bool        `json:"refused,omitempty"`
	ReasonCode     *int        `json:"reason_code,omitempty"`
	SessionPresent *bool       `json:"session_present,omitempty"`
	Properties     *Properties `json:"properties,omitempty"`
}

// Connection is what both libraries' clients can do.
type Connection interface {
	Connect(*Request) (Answer, error)
	Subscribe(*Request) (Answer, error)
	Unsubscribe(*Request) (Answer, error)
	Publish(*Request) (Answer, error)
	Disconnect(*Request) (Answer, error)
	Forget()
}

var (
	output      sync.Mutex
	connections sync.Map
)

func send(line any) {
	text, err := json.Marshal(line)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	output.Lock()
	defer output.Unlock()
	os.Stdout.Write(append(text, '\n'))
}

func sendMessage(name string, message Message) {
	send(struct {
		As    string `json:"as"`
		Event string `json:"event"`
		Message
	}{name, "message", message})
}

func sendClosed(name string, reason *int) {
	send(Answer{As: name, Event: "closed", ReasonCode: reason})
}

func code(value int) *int {
	return &value
}

func tlsConfig(request *Request) (*tls.Config, error) {
	authorities := x509.NewCertPool()
	pem, err := os.ReadFile(request.CA)
	if err != nil {
		return nil, err
	}
	if !authorities.AppendCertsFromPEM(pem) {
		return nil, errors.New("no certificate in " + request.CA)
	}
	config := &tls.Config{RootCAs: authorities, ServerName: request.Host}
	if request.Cert != "" {
		pair, err := tls.LoadX509KeyPair(request.Cert, request.Key)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

func perform(request *Request) (Answer, error) {
	if request.Do == "connect" {
		var connection Connection = &v3Connection{name: request.As}
		if request.Version == 5 {
			connection = &v5Connection{name: request.As}
		}
		connections.Store(request.As, connection)
		return connection.Connect(request)
	}
	found, ok := connections.Load(request.As)
	if !ok {
		return Answer{}, errors.New("there is no such connection")
	}
	connection := found.(Connection)
	switch request.Do {
	case "subscribe":
		return connection.Subscribe(request)
	case "unsubscribe":
		return connection.Unsubscribe(request)
	case "publish":
		return connection.Publish(request)
	case "disconnect":
		return connection.Disconnect(request)
	case "forget":
		connection.Forget()
		return Answer{}, nil
	}
	return Answer{}, errors.New(request.Do + " is no command")
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		request := new(Request)
		if err := json.Unmarshal(lines.Bytes(), request); err != nil {
			fmt.Fprintln(os.Stderr, err)
			continue
		}
		go func() {
			answer, err := perform(request)
			if err != nil {
				answer = Answer{Error: err.Error()}
			}
			answer.ID = request.ID
			send(answer)
		}()
	}
}
