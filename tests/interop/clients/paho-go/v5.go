package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"
	"github.com/gorilla/websocket"
)

// v5Connection is paho.golang, MQTT 5.
type v5Connection struct {
	name   string
	client *paho.Client
	socket net.Conn

	lock      sync.Mutex
	isLeaving bool
	once      sync.Once
}

func (c *v5Connection) Connect(request *Request) (Answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	socket, err := dial(ctx, request)
	if err != nil {
		return Answer{}, err
	}
	c.socket = socket
	c.client = paho.NewClient(paho.ClientConfig{
		ClientID:           request.ClientID,
		Conn:               socket,
		OnPublishReceived:  []func(paho.PublishReceived) (bool, error){c.received},
		OnClientError:      func(error) { c.ended(nil) },
		OnServerDisconnect: func(packet *paho.Disconnect) { c.ended(code(int(packet.ReasonCode))) },
	})
	connack, err := c.client.Connect(ctx, connectPacket(request))
	if connack == nil {
		return Answer{}, err
	}
	if err != nil {
		return Answer{Refused: true, ReasonCode: code(int(connack.ReasonCode))}, nil
	}
	answer := Answer{SessionPresent: &connack.SessionPresent}
	if connack.Properties != nil {
		answer.Properties = &Properties{AssignedClientIdentifier: connack.Properties.AssignedClientID}
	}
	return answer, nil
}

func connectPacket(request *Request) *paho.Connect {
	given := request.Message.Properties
	packet := &paho.Connect{
		ClientID:     request.ClientID,
		CleanStart:   request.Clean,
		KeepAlive:    request.KeepAlive,
		Username:     request.Username,
		UsernameFlag: request.Username != "",
		Password:     []byte(request.Password),
		PasswordFlag: request.Password != "",
		Properties: &paho.ConnectProperties{
			SessionExpiryInterval: given.SessionExpiryInterval,
			ReceiveMaximum:        given.ReceiveMaximum,
			MaximumPacketSize:     given.MaximumPacketSize,
			TopicAliasMaximum:     given.TopicAliasMaximum,
			RequestProblemInfo:    true,
			User:                  userProperties(given.UserProperties),
		},
	}
	if will := request.Will; will != nil {
		packet.WillMessage = &paho.WillMessage{Topic: will.Topic, Payload: will.Payload, QoS: will.QoS, Retain: will.Retain}
		packet.WillProperties = &paho.WillProperties{
			WillDelayInterval: will.Properties.WillDelayInterval,
			MessageExpiry:     will.Properties.MessageExpiryInterval,
			ContentType:       will.Properties.ContentType,
			User:              userProperties(will.Properties.UserProperties),
		}
	}
	return packet
}

// The library takes any connection; these are made the way its autopaho package makes them.
func dial(ctx context.Context, request *Request) (net.Conn, error) {
	address := fmt.Sprintf("%s:%d", request.Host, request.Port)
	var config *tls.Config
	if request.CA != "" {
		made, err := tlsConfig(request)
		if err != nil {
			return nil, err
		}
		config = made
	}
	switch request.Transport {
	case "tls":
		return (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", address)
	case "ws", "wss":
		dialer := websocket.Dialer{TLSClientConfig: config, Subprotocols: []string{"mqtt"}}
		url := fmt.Sprintf("%s://%s/mqtt", request.Transport, address)
		socket, _, err := dialer.DialContext(ctx, url, http.Header{})
		if err != nil {
			return nil, err
		}
		return packets.NewThreadSafeConn(&frames{Conn: socket.NetConn(), socket: socket}), nil
	}
	socket, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return packets.NewThreadSafeConn(socket), nil
}

// frames is a stream over binary WebSocket messages.
type frames struct {
	net.Conn
	socket *websocket.Conn
	reader io.Reader
}

func (f *frames) Write(data []byte) (int, error) {
	if err := f.socket.WriteMessage(websocket.BinaryMessage, data); err != nil {
		return 0, err
	}
	return len(data), nil
}

func (f *frames) Read(buffer []byte) (int, error) {
	for {
		if f.reader == nil {
			_, reader, err := f.socket.NextReader()
			if err != nil {
				return 0, err
			}
			f.reader = reader
		}
		count, err := f.reader.Read(buffer)
		if err == io.EOF {
			f.reader = nil
			err = nil
		}
		if count > 0 || err != nil {
			return count, err
		}
	}
}

func userProperties(pairs [][2]string) paho.UserProperties {
	var user paho.UserProperties
	for _, pair := range pairs {
		user = append(user, paho.UserProperty{Key: pair[0], Value: pair[1]})
	}
	return user
}

func (c *v5Connection) received(event paho.PublishReceived) (bool, error) {
	packet := event.Packet
	dup := packet.Duplicate()
	message := Message{Topic: packet.Topic, Payload: packet.Payload, QoS: packet.QoS, Retain: packet.Retain, Dup: &dup}
	if given := packet.Properties; given != nil {
		message.Properties = Properties{
			PayloadFormatIndicator: given.PayloadFormat,
			MessageExpiryInterval:  given.MessageExpiry,
			ContentType:            given.ContentType,
			ResponseTopic:          given.ResponseTopic,
			CorrelationData:        given.CorrelationData,
			TopicAlias:             given.TopicAlias,
		}
		// The library keeps the last identifier only.
		if given.SubscriptionIdentifier != nil {
			message.Properties.SubscriptionIdentifiers = []int{*given.SubscriptionIdentifier}
		}
		for _, pair := range given.User {
			message.Properties.UserProperties = append(message.Properties.UserProperties, [2]string{pair.Key, pair.Value})
		}
	}
	sendMessage(c.name, message)
	return true, nil
}

func (c *v5Connection) ended(reason *int) {
	c.lock.Lock()
	defer c.lock.Unlock()
	if !c.isLeaving {
		c.once.Do(func() { sendClosed(c.name, reason) })
	}
}

func (c *v5Connection) Subscribe(request *Request) (Answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	packet := &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{
		Topic:             request.Filter,
		QoS:               request.QoS,
		NoLocal:           request.NoLocal,
		RetainAsPublished: request.RetainAsPublished,
		RetainHandling:    request.RetainHandling,
	}}}
	if request.Identifier != 0 {
		packet.Properties = &paho.SubscribeProperties{SubscriptionIdentifier: &request.Identifier}
	}
	suback, err := c.client.Subscribe(ctx, packet)
	if suback == nil {
		return Answer{}, err
	}
	return Answer{ReasonCode: code(int(suback.Reasons[0]))}, nil
}

func (c *v5Connection) Unsubscribe(request *Request) (Answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	unsuback, err := c.client.Unsubscribe(ctx, &paho.Unsubscribe{Topics: []string{request.Filter}})
	if unsuback == nil {
		return Answer{}, err
	}
	return Answer{ReasonCode: code(int(unsuback.Reasons[0]))}, nil
}

func (c *v5Connection) Publish(request *Request) (Answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	given := request.Message.Properties
	packet := &paho.Publish{
		Topic:   request.Topic,
		Payload: request.Payload,
		QoS:     request.QoS,
		Retain:  request.Retain,
		Properties: &paho.PublishProperties{
			PayloadFormat:   given.PayloadFormatIndicator,
			MessageExpiry:   given.MessageExpiryInterval,
			ContentType:     given.ContentType,
			ResponseTopic:   given.ResponseTopic,
			CorrelationData: given.CorrelationData,
			TopicAlias:      given.TopicAlias,
			User:            userProperties(given.UserProperties),
		},
	}
	if request.AliasIsKnown {
		packet.Topic = ""
	}
	response, err := c.client.Publish(ctx, packet)
	if response == nil || request.QoS == 0 {
		return Answer{}, err
	}
	// A reason against the message is an error to the library.
	return Answer{ReasonCode: code(int(response.ReasonCode))}, nil
}

func (c *v5Connection) leave() {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.isLeaving = true
}

func (c *v5Connection) Disconnect(request *Request) (Answer, error) {
	c.leave()
	packet := &paho.Disconnect{Properties: &paho.DisconnectProperties{
		SessionExpiryInterval: request.Message.Properties.SessionExpiryInterval,
	}}
	return Answer{}, c.client.Disconnect(packet)
}

func (c *v5Connection) Forget() {
	c.leave()
	if c.socket != nil {
		c.socket.Close()
	}
}
