/* Let the search run on pages that are opened from a folder, where browsers start no worker: its script runs in a
   hidden frame instead. The same idea as squidfunk/iframe-worker, which the theme would load from another host. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.inside = frame.contentWindow
      const send = "postMessage = (message) => parent.postMessage(message, '*')"
      const load =
        "importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise((done) => {" +
        "const script = document.createElement('script'); script.src = url; script.onload = done;" +
        "document.body.append(script) })), Promise.resolve())"
      this.inside.document.write(
        `<html><body><script>${send}\n${load}</script><script src="${url}"></script></body></html>`,
      )
      this.inside.document.close()
      this.ready = new Promise((done) => { this.inside.onload = done })
      addEventListener("message", (event) => {
        if (event.source !== this.inside) return
        this.dispatchEvent(new MessageEvent("message", { data: event.data }))
        this.onmessage?.(event)
      })
    }
    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })))
    }
    terminate() { this.inside.frameElement.remove() }
  }
}
