package main

import (
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	mqtt "github.com/eclipse/paho.mqtt.golang"
	"github.com/eclipse/paho.mqtt.golang/packets"
)

func init() {
	mqtt.ERROR = log.New(os.Stderr, "", log.Ltime)
}

// v3Connection is paho.mqtt.golang, MQTT 3.1 and 3.1.1.
type v3Connection struct {
	name   string
	client mqtt.Client

	lock      sync.Mutex
	isLeaving bool
	// To end the connection without DISCONNECT, which the library does not offer.
	socket syscall.RawConn
}

func (c *v3Connection) Connect(request *Request) (Answer, error) {
	scheme := map[string]string{"tcp": "tcp", "tls": "ssl", "ws": "ws", "wss": "wss"}[request.Transport]
	path := ""
	if scheme == "ws" || scheme == "wss" {
		path = "/mqtt"
	}
	options := mqtt.NewClientOptions().
		AddBroker(fmt.Sprintf("%s://%s:%d%s", scheme, request.Host, request.Port, path)).
		SetClientID(request.ClientID).
		SetProtocolVersion(uint(request.Version)).
		SetCleanSession(request.Clean).
		SetKeepAlive(time.Duration(request.KeepAlive) * time.Second).
		SetUsername(request.Username).
		SetPassword(request.Password).
		SetAutoReconnect(false).
		SetConnectRetry(false).
		SetConnectTimeout(patience).
		SetDefaultPublishHandler(c.received).
		SetConnectionLostHandler(c.lost).
		SetDialer(&net.Dialer{Timeout: patience, Control: c.remember})
	if request.CA != "" {
		config, err := tlsConfig(request)
		if err != nil {
			return Answer{}, err
		}
		options.SetTLSConfig(config)
	}
	if will := request.Will; will != nil {
		options.SetBinaryWill(will.Topic, will.Payload, will.QoS, will.Retain)
	}
	c.client = mqtt.NewClient(options)
	token := c.client.Connect().(*mqtt.ConnectToken)
	if !token.WaitTimeout(patience) {
		return Answer{}, errors.New("no CONNACK")
	}
	if refusal := token.ReturnCode(); refusal >= packets.ErrRefusedBadProtocolVersion && refusal <= packets.ErrRefusedNotAuthorised {
		return Answer{Refused: true, ReasonCode: code(int(refusal))}, nil
	}
	if err := token.Error(); err != nil {
		return Answer{}, err
	}
	present := token.SessionPresent()
	return Answer{SessionPresent: &present}, nil
}

func (c *v3Connection) remember(_, _ string, socket syscall.RawConn) error {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.socket = socket
	return nil
}

func (c *v3Connection) received(_ mqtt.Client, message mqtt.Message) {
	dup := message.Duplicate()
	sendMessage(c.name, Message{
		Topic:   message.Topic(),
		Payload: message.Payload(),
		QoS:     message.Qos(),
		Retain:  message.Retained(),
		Dup:     &dup,
	})
}

func (c *v3Connection) lost(_ mqtt.Client, _ error) {
	c.lock.Lock()
	defer c.lock.Unlock()
	if !c.isLeaving {
		sendClosed(c.name, nil)
	}
}

func finished(token mqtt.Token) error {
	if !token.WaitTimeout(patience) {
		return errors.New("no acknowledgement")
	}
	return token.Error()
}

func (c *v3Connection) Subscribe(request *Request) (Answer, error) {
	token := c.client.Subscribe(request.Filter, request.QoS, nil).(*mqtt.SubscribeToken)
	err := finished(token)
	// One filter, which the library reports without `$share/<group>/`.
	var granted byte
	ok := false
	for _, granted = range token.Result() {
		ok = true
	}
	if !ok {
		return Answer{}, err
	}
	// A refused filter is an error to the library.
	return Answer{ReasonCode: code(int(granted))}, nil
}

func (c *v3Connection) Unsubscribe(request *Request) (Answer, error) {
	return Answer{}, finished(c.client.Unsubscribe(request.Filter))
}

func (c *v3Connection) Publish(request *Request) (Answer, error) {
	token := c.client.Publish(request.Topic, request.QoS, request.Retain, request.Payload)
	return Answer{}, finished(token)
}

func (c *v3Connection) leave() {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.isLeaving = true
}

func (c *v3Connection) Disconnect(*Request) (Answer, error) {
	c.leave()
	c.client.Disconnect(250)
	return Answer{}, nil
}

func (c *v3Connection) Forget() {
	c.leave()
	c.lock.Lock()
	socket := c.socket
	c.lock.Unlock()
	if socket != nil {
		socket.Control(func(descriptor uintptr) {
			syscall.Shutdown(int(descriptor), syscall.SHUT_RDWR)
		})
	}
}
